"""What the kernels must know of an NVIDIA card, and which card a program is traced for."""

from typing import NamedTuple

import jax

MAJOR_AMPERE, MAJOR_HOPPER, MAJOR_BLACKWELL = 8, 9, 10


class Card(NamedTuple):
    """The vendor's numbers: dense matrix rates without sparsity, in flop/s; memory in bytes/s."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    bf16_flops: float
    float32_flops: float  # float32 products on the plain units
    bandwidth: float


CARDS = (
    Card("A100", (8, 0), 108, 312e12, 19.5e12, 2.039e12),
    Card("H100", (9, 0), 132, 989e12, 67e12, 3.35e12),
    Card("H200", (9, 0), 132, 989e12, 67e12, 4.8e12),
    Card("B200", (10, 0), 148, 2250e12, 75e12, 8.0e12),
)


def by_name(device_kind: str) -> Card | None:
    """The card whose name is in a device kind such as "NVIDIA H100 80GB HBM3"."""
    return next((card for card in CARDS if card.name in device_kind), None)


def current() -> Card:
    """The card that is traced for: of the abstract mesh if it names one, else of this process.

    Where there is none (interpret mode on a CPU), an A100: what fits it fits the others.
    """
    abstract = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    if abstract is not None and (card := by_name(abstract.device_kind)):
        return card
    if jax.default_backend() != "gpu":
        return CARDS[0]
    device = jax.devices()[0]
    if card := by_name(device.device_kind):
        return card
    major, minor = (int(part) for part in device.compute_capability.split("."))
    alike = [card for card in CARDS if card.capability <= (major, minor)] or CARDS[:1]
    return alike[-1]._replace(
        name=device.device_kind,
        capability=(major, minor),
        multiprocessors=getattr(device, "core_count", alike[-1].multiprocessors),
    )
