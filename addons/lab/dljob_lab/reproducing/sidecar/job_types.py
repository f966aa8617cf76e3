"""
The fourteen types of job of the SideCar paper (Tables VI and VII), and how fast they train.

Called by :mod:`dljob_lab.reproducing.sidecar.workloads`. The paper prints no table of iteration times,
so they are concluded from measured ones of the nearest models, by one rule for all of them:

* The time of an iteration on n GPUs of one node is ``t(n) = a/n + b + c*n``: what is computed, what
  is constant, what coordinates. It fits the measured curves to one percent (two for vgg16 and
  resnet50_cifar10). The paper's batch sizes are global, so scaling is strong.
* ``b`` and ``c`` are those of the nearest model in ElasticFlow's table at the nearest batch size:
  clean curves of training at a fixed global batch. They are taken for all types of GPU.
* ``a`` is in proportion to the batch size. On a type of GPU it comes from Gavel, who measured a
  ResNet on ImageNet and one on Cifar-10 on one GPU of each of the three types. From there to
  another model it is a ratio that ElasticFlow measured, if the model is in its table, and for the
  rest the ratio of the multiply-adds of an image that the models' authors published.

It was fixed before the workloads were first played. :class:`Rule` names two other ways to choose,
for the sensitivity of the outcome.
"""

import math
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import NamedTuple

from dljob.core.predicting.speed_curves import (
    IterationTime,
    Point,
    fit_iteration_time,
    iteration_time,
)
from dljob.core.profiles import JobType, Profile, Speed
from dljob.sim.inputs.shipped import load_shipped
from dljob_wire.messages import Shape

COUNTS = (1, 2, 4, 8)
"""The numbers of GPUs for which there is a speed: all that one of the paper's nodes can give."""


class Dataset(NamedTuple):
    """The data of a training."""

    name: str
    images: int
    epochs: int
    """How often a job goes through all images (section V.A)."""
    gavel: str
    """The model that Gavel measured on images of this size."""
    elasticflow: str
    """The same model, or the nearest, in ElasticFlow's table."""
    mega_adds: float
    """The multiply-adds of Gavel's model for one image, in millions."""


IMAGENET = Dataset("ImageNet", 1_281_167, 1, "ResNet-50", "resnet50", 3800.0)
CIFAR10 = Dataset("Cifar10", 50_000, 10, "ResNet-18", "resnet50_cifar10", 556.0)
# There are no measurements on MNIST; its images are almost as small as those of Cifar-10.
MNIST = CIFAR10._replace(name="MNIST", images=60_000)


class Kind(NamedTuple):
    """A type of job: a row of Table VI or VII, and the nearest model that was measured."""

    model: str
    batch_size: int
    dataset: Dataset
    nearest: str
    """The model in ElasticFlow's table whose scaling it is given."""
    adds: float
    """Its multiply-adds for one image over those of the nearest model."""

    @property
    def type(self) -> JobType:
        """Its type in the profile store."""
        return JobType(self.model, self.dataset.name, self.batch_size)

    @property
    def iterations(self) -> int:
        """Return how many iterations a job of it trains."""
        return math.ceil(self.dataset.images / self.batch_size) * self.dataset.epochs


# He et al., "Deep Residual Learning" (CVPR 2016), Table 1: 1.8, 3.6 and 3.8 billion multiply-adds
# for ResNet-18, -34 and -50; section 4.2 for ResNet-8, whose sum is 12.2 million.
_RESNET_18, _RESNET_34 = 1.8 / 3.8, 3.6 / 3.8
_RESNET_8 = 12.2 / CIFAR10.mega_adds
# Szegedy et al.: 1.5 billion for GoogLeNet (CVPR 2015), 5 billion for Inception v3 (CVPR 2016).
_GOOGLENET = 1.5 / 5.0
# Krizhevsky et al. (NIPS 2012), 0.72 billion; Simonyan and Zisserman (ICLR 2015), 15.5 billion.
_ALEXNET = 0.72 / 15.5
# LeCun et al. (1998): 0.42 million for LeNet-5.
_LENET = 0.42 / CIFAR10.mega_adds

JOB_SET_ONE = (
    Kind("ResNet-18", 64, IMAGENET, "resnet50", _RESNET_18),
    Kind("ResNet-18", 128, IMAGENET, "resnet50", _RESNET_18),
    Kind("ResNet-18", 256, IMAGENET, "resnet50", _RESNET_18),
    Kind("ResNet-34", 64, IMAGENET, "resnet50", _RESNET_34),
    Kind("ResNet-34", 128, IMAGENET, "resnet50", _RESNET_34),
    Kind("ResNet-50", 64, IMAGENET, "resnet50", 1.0),
    Kind("ResNet-8", 1024, CIFAR10, "resnet50_cifar10", _RESNET_8),
)
"""Table VI."""

JOB_SET_TWO = (
    Kind("ResNet-18", 256, IMAGENET, "resnet50", _RESNET_18),
    Kind("ResNet-34", 128, IMAGENET, "resnet50", _RESNET_34),
    Kind("InceptionV3", 128, IMAGENET, "inception3", 1.0),
    Kind("VGG16", 64, IMAGENET, "vgg16", 1.0),
    Kind("GoogLeNet", 512, IMAGENET, "inception3", _GOOGLENET),
    Kind("AlexNet", 256, IMAGENET, "vgg16", _ALEXNET),
    Kind("LeNet", 1024, MNIST, "resnet50_cifar10", _LENET),
)
"""Table VII."""


class Rule(Enum):
    """Which measurements speak for a type of job."""

    COMPUTED_PART = "computed part by multiply-adds"
    """The rule above."""
    AS_MEASURED = "nearest model as it was measured"
    """Without correction by multiply-adds: a ResNet-18 trains like a ResNet-50."""
    GAVEL_CURVES = "scaling of Gavel's ResNet-50"
    """The speed on one GPU as above; from there as Gavel measured on that type of GPU."""


def make_profile(
    kind: Kind,
    gpu_types: tuple[str, ...],
    *,
    rule: Rule = Rule.COMPUTED_PART,
    slowness: float = 1.0,
) -> Profile:
    """The speeds of a type of job on some types of GPU, at every count."""
    speeds: dict[Shape, Speed] = {}
    for gpu_type in gpu_types:
        terms = _find_terms(kind, gpu_type, rule=rule)
        for gpus in COUNTS:
            time = iteration_time(terms, gpus)
            if rule is Rule.GAVEL_CURVES:
                time = iteration_time(terms, 1) / _growth_by_gavel(gpu_type, gpus)
            speeds[Shape(gpus, 1, gpu_type)] = Speed(1.0 / (time * slowness))
    return Profile(kind.type, speeds)


class Sources(NamedTuple):
    """The measurements that speak for a type, and what they are multiplied by."""

    curve: str
    """Of ElasticFlow, with its batch size."""
    one_gpu: str
    """Of Gavel, likewise."""
    adds: float


def find_sources(kind: Kind) -> Sources:
    """Name what a type of job is concluded from."""
    data = kind.dataset
    return Sources(
        f"{kind.nearest} {_nearest_batch(kind.nearest, kind.batch_size)}",
        f"{data.gavel} {_nearest_batch(data.gavel, kind.batch_size)}",
        kind.adds,
    )


def _find_terms(kind: Kind, gpu_type: str, *, rule: Rule) -> IterationTime:
    """The three terms of the time of an iteration."""
    data, batch = kind.dataset, kind.batch_size
    curve_batch = _nearest_batch(kind.nearest, batch)
    computed, constant, coordination = _fit_curve(kind.nearest, curve_batch)
    usual_batch = _nearest_batch(data.elasticflow, curve_batch)
    # How much more the nearest model computes than the one that Gavel measured on all types.
    usual = _fit_curve(data.elasticflow, usual_batch)[0]
    more = (computed / curve_batch) / (usual / usual_batch)
    adds = 1.0 if rule is Rule.AS_MEASURED else kind.adds
    return _time_an_image(data, gpu_type, batch=batch) * batch * more * adds, constant, coordination


def _time_an_image(data: Dataset, gpu_type: str, *, batch: int) -> float:
    """The time that one GPU of that type computes on one image with Gavel's model, without overhead."""
    measured = _nearest_batch(data.gavel, batch)
    time = 1.0 / _speed(data.gavel, measured, shape=Shape(1, 1, gpu_type))
    overheads = _fit_curve(data.elasticflow, _nearest_batch(data.elasticflow, batch))[1:]
    return (time - sum(overheads)) / measured


def _growth_by_gavel(gpu_type: str, gpus: int) -> float:
    """At the only batch size at which Gavel's ResNet-50 has all counts on all types."""
    one = _speed("ResNet-50", 128, shape=Shape(1, 1, gpu_type))
    return _speed("ResNet-50", 128, shape=Shape(gpus, 1, gpu_type)) / one


@cache
def _load() -> Mapping[JobType, Profile]:
    return load_shipped()


def _speed(model: str, batch: int, *, shape: Shape) -> float:
    return _load()[JobType(model, "", batch)].speeds[shape].iterations_per_s


def _nearest_batch(model: str, batch: int) -> int:
    """The nearest batch size that was measured on one GPU, in ratio; the smaller of two."""
    measured = MEASURED_BATCHES[model]
    return min(measured, key=lambda each: max(each, batch) / min(each, batch))


MEASURED_BATCHES: Mapping[str, tuple[int, ...]] = {
    "ResNet-18": (16, 32, 64, 128, 256),
    "ResNet-50": (16, 32, 64, 128),
    "inception3": (64, 128),
    "resnet50": (64, 128, 256),
    "resnet50_cifar10": (64, 128, 256),
    "vgg16": (64, 128, 256),
}
"""Of the tables of Gavel (local) and ElasticFlow (global); on one GPU that is the same."""


@cache
def _fit_curve(model: str, batch: int) -> IterationTime:
    """The three terms of a curve of ElasticFlow's, on one of its servers."""
    points = [
        Point(gpus, 1, _speed(model, batch, shape=Shape(gpus, 1, "A100")), 1.0) for gpus in COUNTS
    ]
    return fit_iteration_time(points)
