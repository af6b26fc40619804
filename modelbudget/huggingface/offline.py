"""Hugging Face's transformers in offline mode: nothing is downloaded."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

os.environ["HF_HUB_OFFLINE"] = "1"

import transformers

transformers.logging.set_verbosity_error()


@contextmanager
def refusals(class_name: str) -> Iterator[None]:
    """Raise what a class raises, each its own error, as ValueError in one line.

    A part of no width, which a key of 0 may mean, is built without torch's warning.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            yield
    except MemoryError:
        raise
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ValueError(f"{class_name} does not accept its config: {reason}") from None


__all__ = ["refusals", "transformers"]
