"""Everything that an author of methods needs, in one place; `fedmes.methods` hands it out."""

from fedmes.config.method_options import MethodOptions
from fedmes.config.section import option
from fedmes.methods.base import Batch, ClientContext, Me, Method
from fedmes.methods.ccvr import CCVR
from fedmes.methods.der import DERPP
from fedmes.methods.ditto import Ditto
from fedmes.methods.er import ER, ERACE
from fedmes.methods.ewc import EWC, MAS
from fedmes.methods.fedagem import FedAGEM
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.fedmes import FedMeS
from fedmes.methods.fedmes_plus import FedMeSPlus
from fedmes.methods.fedproto import FedProto
from fedmes.methods.fedprox import FedProx
from fedmes.methods.fedrep import FedRep
from fedmes.methods.fedstats import FedStats
from fedmes.methods.fedstats_adapted import FedStatsAdapted, make_fedstats
from fedmes.methods.fedweit import FedWeIT
from fedmes.methods.flwf import FLwF, FLwF2T
from fedmes.methods.glfc import GLFC
from fedmes.methods.icarl import ICaRL
from fedmes.methods.knn import MemoryVote, Voting, kernel_exponent, mix, neighbours, votes
from fedmes.methods.knnper import KNNPer
from fedmes.methods.lfedcon2 import LFedCon2
from fedmes.methods.local import Joint, Local, LocalER
from fedmes.methods.losses import cross_entropy, cross_entropy_sum, distillation, scoped
from fedmes.methods.optimizers import OPTIMIZERS, SGD, Adam, Optimizer
from fedmes.methods.regmean import RegMean
from fedmes.methods.teacher import Taught
from fedmes.models.dropout import hashed_uniforms
from fedmes.tensors import Tensors, at, distance, dot, mean_of_present, pick, put

__all__ = [
    "CCVR",
    "DERPP",
    "ER",
    "ERACE",
    "EWC",
    "GLFC",
    "MAS",
    "OPTIMIZERS",
    "SGD",
    "Adam",
    "Batch",
    "ClientContext",
    "Ditto",
    "FLwF",
    "FLwF2T",
    "FedAGEM",
    "FedAvg",
    "FedMeS",
    "FedMeSPlus",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedStats",
    "FedStatsAdapted",
    "FedWeIT",
    "ICaRL",
    "Joint",
    "KNNPer",
    "LFedCon2",
    "Local",
    "LocalER",
    "Me",
    "MemoryVote",
    "Method",
    "MethodOptions",
    "Optimizer",
    "RegMean",
    "Taught",
    "Tensors",
    "Voting",
    "at",
    "cross_entropy",
    "cross_entropy_sum",
    "distance",
    "distillation",
    "dot",
    "hashed_uniforms",
    "kernel_exponent",
    "make_fedstats",
    "mean_of_present",
    "mix",
    "neighbours",
    "option",
    "pick",
    "put",
    "scoped",
    "votes",
]  # fmt: skip
