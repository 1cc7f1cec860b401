"""Sizes that some vendors have and others do not: templates by their units of compute, modules of cards, bytes."""

from __future__ import annotations

from gpuledger.formats.custom_resource.gpu_allocation import MAX_MEMORY_MIB
from gpuledger.formats.dialects.vocabulary import Template, Vocabulary
from gpuledger.formats.quantity import amount
from gpuledger.model.card import ALL_CORES
from gpuledger.model.errors import BadInput
from gpuledger.model.request import Demand

BYTES = ("i", "M", "G", "T", "P", "E")
"""Ends of a quantity that is in bytes. The API server writes `k` at the end of any number of thousands."""


def memory_in_bytes_mib(given: object) -> int | None:
    """Return in MiB, rounded up, what is written with a suffix, such as 2Gi; None for a plain number.

    Raises BadInput for what is no amount, or more than a card can have.
    """
    if not isinstance(given, str) or not given.endswith(BYTES):
        return None
    memory_mib = -(-amount(given, 1) // 2**20)
    if memory_mib > MAX_MEMORY_MIB:
        raise BadInput(f"{given} is more than {MAX_MEMORY_MIB} MiB")
    return memory_mib


def whole_modules(cards: int, module: int) -> tuple[int, str]:
    """Return the number of cards that a container gets where they come in modules, and what to tell of it.

    Raises BadInput for more than one card that leave a part of a module.
    """
    if cards % module == 0:
        return cards, ""
    if cards > 1:
        raise BadInput(f"{cards} is no multiple of {module}: these cards come in modules of {module}")
    return module, f"these cards come in modules of {module}, so it gets {module}"


def template_of_units(units: int, vocabulary: Vocabulary) -> Template:
    """Return the template with exactly so many units of compute. Raises BadInput if there is none."""
    found = next((each for each in vocabulary.templates if each.core_units == units), None)
    if found is None:
        sizes = ", ".join(str(each.core_units) for each in vocabulary.templates)
        raise BadInput(f"{units} can't be cut; choose one of {sizes}")
    return found


def template_for(memory_mib: int, cores: int, vocabulary: Vocabulary) -> Template | None:
    """Return the smallest template with this memory and these percents of the cores, None if it takes a whole card."""
    enough = (each for each in vocabulary.templates if memory_mib <= each.memory_mib)
    return next((each for each in enough if cores <= cores_of(each, vocabulary)), None)


def templated(template: Template, vocabulary: Vocabulary, resource: str) -> Demand:
    """Return what a template takes of one card."""
    cores = cores_of(template, vocabulary)
    return Demand(1, template.memory_mib, cores=cores, exclusive=cores == ALL_CORES, resource=resource)


def cores_of(template: Template, vocabulary: Vocabulary) -> int:
    """Return the cores of a template, in percent of the card."""
    return template.core_units * ALL_CORES // vocabulary.cores_of_card
