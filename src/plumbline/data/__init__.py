"""The papers' data sets by name, ``load("adult")``, and your own: tables, images, torch data sets.

Each data set says where the numbers of its preprocessing come from, so that the privacy statement
can repeat it (``Splits.not_covered``). Every file of this folder is imported, and registers its
data sets when it is (``@dataset``).
"""

from plumbline.data.base import DATASETS, Constant, Split, Splits, dataset
from plumbline.data.embeddings import glove_vectors, random_vectors
from plumbline.data.files import DataError, TableError, data_folder
from plumbline.data.getting import get
from plumbline.data.hashing import hashed
from plumbline.data.image_folder import image_folder as from_images
from plumbline.data.loading import load
from plumbline.data.own import as_splits
from plumbline.data.table_encoding import TableEncoding, read_encoding
from plumbline.data.table_look import TableLook, look_at
from plumbline.data.table_options import TableOptions
from plumbline.data.table_schema import Schema, read_schema
from plumbline.data.tables import table
from plumbline.data.text import Vocabulary, corpus
from plumbline.registry import import_files

__all__ = [
    "DATASETS",
    "Constant",
    "DataError",
    "Schema",
    "Split",
    "Splits",
    "TableEncoding",
    "TableError",
    "TableLook",
    "TableOptions",
    "Vocabulary",
    "as_splits",
    "corpus",
    "data_folder",
    "dataset",
    "from_images",
    "get",
    "glove_vectors",
    "hashed",
    "load",
    "look_at",
    "random_vectors",
    "read_encoding",
    "read_schema",
    "table",
]

import_files(__name__, __path__)
