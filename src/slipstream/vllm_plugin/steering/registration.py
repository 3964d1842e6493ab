"""Registers the file transfer with vLLM when vLLM imports its registry."""

from types import ModuleType

from slipstream.vllm_plugin.patches.application import when_imported

BACKEND = "slipstream-file"
_REGISTER = "vllm.distributed.weight_transfer.factory"


def register_file_transfer() -> None:
    """Add our backend to `--weight-transfer-config` in this process."""
    when_imported(_REGISTER, _register)


def _register(module: ModuleType) -> None:
    register = module.WeightTransferEngineFactory
    if BACKEND not in register._registry:
        register.register_engine(
            BACKEND, "slipstream.vllm_plugin.steering.file_transfer", "FileTransfer"
        )
