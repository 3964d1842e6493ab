"""What a model's name says of the model that it was made from.

Names are a weak sign: anybody may call a repository anything. A match by name alone is reported
as such, and the pair check decides where the files can be read.
"""

import re

# How builds of a model are called: the format and its bits, the tool, the machine.
_BUILD_WORD = re.compile(
    r"[-_.](?:(?:nv|mx)?fp(?:4|8|16)|bf16|int[48](?:mix)?|w\d+a\d+(?:fp8)?|\d+(?:\.\d+)?(?:bits?|bpw)|"
    r"awq|gptq|autoround|exl[23]|bnb|modelopt|quantized|dynamic|static|block|lmhead|gb10|unsloth|qat)$"
)


def name_stem(name: str) -> str:
    """Return a model's name without its owner and without the words that name a build of it."""
    stem = name.rstrip("/").rpartition("/")[2].lower()
    # Meta's repositories lost this prefix; the builds of others keep it.
    stem = stem.removeprefix("meta-") if stem.startswith("meta-llama") else stem
    while match := _BUILD_WORD.search(stem):
        stem = stem[: match.start()]
    return stem
