"""Registers the file transfer with vLLM, as soon as vLLM imports the register of such engines."""

from types import ModuleType

from slipstream.vllm_plugin.patches.application import when_imported

BACKEND = "slipstream-file"
_REGISTER = "vllm.distributed.weight_transfer.factory"


def register_file_transfer() -> None:
    """Have `--weight-transfer-config` know our backend in this process."""
    when_imported(_REGISTER, _register)


def _register(module: ModuleType) -> None:
    register = module.WeightTransferEngineFactory
    if BACKEND not in register._registry:
        register.register_engine(
            BACKEND, "slipstream.vllm_plugin.steering.file_transfer", "FileTransfer"
        )
