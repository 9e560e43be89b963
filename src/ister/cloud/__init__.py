"""Objects: the log's bytes carried to object storage, read back, and the log pruned behind them."""

from ister.cloud.deleter import Deleter, Retention
from ister.cloud.descriptors import ObjectCatalog
from ister.cloud.reader import CloudReader, ObjectStream
from ister.cloud.uploader import Uploader, UploadOptions

__all__ = ["CloudReader", "Deleter", "ObjectCatalog", "ObjectStream", "Retention", "UploadOptions", "Uploader"]
