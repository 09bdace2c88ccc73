"""The papers' data sets by name, ``load("adult")``, and your own: tables, images, torch data sets.

Each data set says where the numbers of its preprocessing come from, so that the privacy statement
can repeat it (``Splits.not_covered``). A file registers its data sets when it is imported.
"""

from plumbline.data import (  # noqa: F401
    adult,
    celeba,
    cifar,
    digits,
    dutch,
    idx,
    image_folder,
    imagenet32,
    imdb,
    svhn,
)
from plumbline.data.base import Constant, Split, Splits, load
from plumbline.data.embeddings import glove_vectors, random_vectors
from plumbline.data.files import DataError, data_folder
from plumbline.data.getting import get
from plumbline.data.hashing import hashed
from plumbline.data.image_folder import image_folder as from_images
from plumbline.data.table_encoding import TableEncoding, read_encoding
from plumbline.data.tables import from_table
from plumbline.data.text import Vocabulary, corpus
from plumbline.data.wrapped import from_torch

__all__ = [
    "Constant",
    "DataError",
    "Split",
    "Splits",
    "TableEncoding",
    "Vocabulary",
    "corpus",
    "data_folder",
    "from_images",
    "from_table",
    "from_torch",
    "get",
    "glove_vectors",
    "hashed",
    "load",
    "random_vectors",
    "read_encoding",
]
