"""A former place, which methods of users' own may still import: all of it is in
`fedmes.methods`."""

from fedmes.methods.base import Batch, Me, Method

__all__ = ["Batch", "Me", "Method"]
