"""Catalogue of ``bert-data fetch``: addresses, sizes, checksums and licences.

Sizes and checksums are those that the named source publishes; where none does, there is none here and the
computed one is printed. The files belong to those who publish them; read their licences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from bert_trainer.errors import InputError

Algorithm = Literal["sha256", "sha1", "md5"]


@dataclass(frozen=True, slots=True)
class Checksum:
    """A published digest, hexadecimal."""

    algorithm: Algorithm
    digest: str


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file and where it goes."""

    url: str
    path: str
    """Below the output folder."""
    size: int | None = None
    """Bytes, where published."""
    checksum: Checksum | None = None
    members: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of files in it, where it is an archive; names as in the archive."""


@dataclass(frozen=True, slots=True)
class Download:
    """Files that belong together."""

    name: str
    summary: str
    source: str
    """Who publishes it, and where the checksums are from."""
    files: tuple[RemoteFile, ...]


def _sha256(digest: str) -> Checksum:
    return Checksum("sha256", digest)


_BERT_MODELS = "https://storage.googleapis.com/bert_models"
_UNCASED_VOCABULARY = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
_CASED_VOCABULARY = "eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02"


def _google(name: str, date: str, archive: str, summary: str, *digests: str) -> Download:
    """digests: of config, data, index, meta and vocabulary."""
    names = (
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "bert_model.ckpt.meta",
        "vocab.txt",
    )
    members = {f"{archive}/{file}": digest for file, digest in zip(names, digests, strict=False)}
    stated = "; checksums of its files: NVIDIA/DeepLearningExamples" if digests else "; no checksum is published"
    return Download(
        name,
        f"{summary}: TensorFlow checkpoint, vocabulary and configuration",
        f"google-research/bert, Apache-2.0{stated}",
        (RemoteFile(f"{_BERT_MODELS}/{date}/{archive}.zip", f"{archive}.zip", members=MappingProxyType(members)),),
    )


def _glue(task: str, file: str, size: int, digest: str) -> Download:
    url = f"https://dl.fbaipublicfiles.com/glue/data/{file}"
    return Download(
        f"glue-{task}",
        f"GLUE task {file.removesuffix('.zip')}",
        "gluebenchmark.com; size and checksum: TensorFlow Datasets and Hugging Face datasets",
        (RemoteFile(url, f"glue/{file}", size, _sha256(digest)),),
    )


def _squad(version: str, *files: tuple[str, int | None, str]) -> Download:
    base = "https://rajpurkar.github.io/SQuAD-explorer/dataset"
    return Download(
        f"squad-{version}",
        f"SQuAD {version}, training and development set",
        "rajpurkar.github.io/SQuAD-explorer, CC BY-SA 4.0; checksums: TensorFlow Datasets and ParlAI",
        tuple(RemoteFile(f"{base}/{name}", f"squad/{name}", size, _sha256(digest)) for name, size, digest in files),
    )


_VOCABULARY = Download(
    "vocabulary-uncased",
    "BERT's English vocabulary, lower-cased: 30,522 WordPieces",
    "Hugging Face's copy of google-research/bert, Apache-2.0; size: mlcommons/training, checksum: NVIDIA",
    (
        RemoteFile(
            "https://huggingface.co/google-bert/bert-base-uncased/resolve/main/vocab.txt",
            "bert-uncased-vocab.txt",
            231_508,
            _sha256(_UNCASED_VOCABULARY),
        ),
    ),
)

_MRPC = Download(
    "glue-mrpc",
    "GLUE task MRPC: the corpus, and which of its pairs are the development set",
    "Microsoft Research; sizes and checksums: TensorFlow Datasets and Hugging Face datasets",
    (
        RemoteFile(
            "https://dl.fbaipublicfiles.com/senteval/senteval_data/msr_paraphrase_train.txt",
            "glue/MRPC/msr_paraphrase_train.txt",
            1_047_044,
            _sha256("60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89"),
        ),
        RemoteFile(
            "https://dl.fbaipublicfiles.com/senteval/senteval_data/msr_paraphrase_test.txt",
            "glue/MRPC/msr_paraphrase_test.txt",
            441_275,
            _sha256("a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784"),
        ),
        RemoteFile(
            "https://dl.fbaipublicfiles.com/glue/data/mrpc_dev_ids.tsv",
            "glue/MRPC/mrpc_dev_ids.tsv",
            6_222,
            _sha256("971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7"),
        ),
    ),
)

_ALL = (
    _VOCABULARY,
    _google(
        "bert-base-uncased",
        "2018_10_18",
        "uncased_L-12_H-768_A-12",
        "BERT base, lower-cased English",
        "7b4e5f53efbd058c67cda0aacfafb340113ea1b5797d9ce6ee411704ba21fcbc",
        "58580dc5e0bf0ae0d2efd51d0e8272b2f808857f0a43a88aaf7549da6d7a8a84",
        "04c1323086e2f1c5b7c0759d8d3e484afbb0ab45f51793daab9f647113a0117b",
        "dd5682170a10c3ea0280c2e9b9a45fee894eb62da649bbdea37b38b0ded5f60e",
        _UNCASED_VOCABULARY,
    ),
    _google(
        "bert-large-uncased",
        "2018_10_18",
        "uncased_L-24_H-1024_A-16",
        "BERT large, lower-cased English",
        "bfa42236d269e2aeb3a6d30412a33d15dbe8ea597e2b01dc9518c63cc6efafcb",
        "bc6b3363e3be458c99ecf64b7f472d2b7c67534fd8f564c0556a678f90f4eea1",
        "68b52f2205ffc64dc627d1120cf399c1ef1cbc35ea5021d1afc889ffe2ce2093",
        "6fcce8ff7628f229a885a593625e3d5ff9687542d5ef128d9beb1b0c05edc4a1",
        _UNCASED_VOCABULARY,
    ),
    _google(
        "bert-base-cased",
        "2018_10_18",
        "cased_L-12_H-768_A-12",
        "BERT base, English with capitals",
        "f11dfb757bea16339a33e1bf327b0aade6e57fd9c29dc6b84f7ddb20682f48bc",
        "734d5a1b68bf98d4e9cb6b6692725d00842a1937af73902e51776905d8f760ea",
        "517d6ef5c41fc2ca1f595276d6fccf5521810d57f5a74e32616151557790f7b1",
        "5f8a9771ff25dadd61582abb4e3a748215a10a6b55947cbb66d0f0ba1694be98",
        _CASED_VOCABULARY,
    ),
    _google(
        "bert-large-cased",
        "2018_10_18",
        "cased_L-24_H-1024_A-16",
        "BERT large, English with capitals",
        "7adb2125c8225da495656c982fd1c5f64ba8f20ad020838571a3f8a954c2df57",
        "6ff33640f40d472f7a16af0c17b1179ca9dcc0373155fb05335b6a4dd1657ef0",
        "ef42a53f577fbe07381f4161b13c7cab4f4fc3b167cec6a9ae382c53d18049cf",
        "d2ddff3ed33b80091eac95171e94149736ea74eb645e575d942ec4a5e01a40a1",
        _CASED_VOCABULARY,
    ),
    _google(
        "bert-base-multilingual-cased",
        "2018_11_23",
        "multi_cased_L-12_H-768_A-12",
        "BERT base, 104 languages",
        "e76c3964bc14a8bb37a5530cdc802699d2f4a6fddfab0611e153aa2528f234f0",
        "55b8a2df41f69c60c5180e50a7c31b7cdf6238909390c4ddf05fbc0d37aa1ac5",
        "7d8509c2a62b4e300feb55f8e5f1eef41638f4998dd4d887736f42d4f6a34b37",
        "95e5f1997e8831f1c31e5cf530f1a2e99f121e9cd20887f2dce6fe9e3343e3fa",
        "fe0fda7c425b48c516fc8f160d594c8022a0808447475c1a7c6d6479763f310c",
    ),
    _google(
        "bert-base-chinese",
        "2018_11_03",
        "chinese_L-12_H-768_A-12",
        "BERT base, Chinese",
        "7aaad0335058e2640bcb2c2e9a932b1cd9da200c46ea7b8957d54431f201c015",
        "756699356b78ad0ef1ca9ba6528297bcb3dd1aef5feadd31f4775d7c7fc989ba",
        "46315546e05ce62327b3e2cd1bed22836adcb2ff29735ec87721396edb21b82e",
        "c0f8d51e1ab986604bc2b25d6ec0af7fd21ff94cf67081996ec3f3bf5d823047",
        "45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c",
    ),
    _google(
        "bert-large-uncased-whole-word-masking",
        "2019_05_30",
        "wwm_uncased_L-24_H-1024_A-16",
        "BERT large trained with whole-word masking, lower-cased English",
    ),
    _google(
        "bert-large-cased-whole-word-masking",
        "2019_05_30",
        "wwm_cased_L-24_H-1024_A-16",
        "BERT large trained with whole-word masking, English with capitals",
    ),
    _glue("cola", "CoLA.zip", 376_971, "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"),
    _glue("mnli", "MNLI.zip", 312_783_507, "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"),
    _MRPC,
    _glue("qnli", "QNLIv2.zip", 10_627_589, "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5"),
    _glue("qqp", "QQP-clean.zip", 41_696_084, "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0"),
    _glue("rte", "RTE.zip", 697_150, "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee"),
    _glue("sst-2", "SST-2.zip", 7_439_277, "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"),
    _glue("sts-b", "STS-B.zip", 802_872, "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85"),
    _glue("wnli", "WNLI.zip", 28_999, "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46"),
    _squad(
        "v1.1",
        ("train-v1.1.json", 30_288_272, "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955"),
        ("dev-v1.1.json", 4_854_279, "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9"),
    ),
    _squad(
        "v2.0",
        ("train-v2.0.json", None, "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002"),
        ("dev-v2.0.json", None, "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8"),
    ),
)

CATALOGUE: Mapping[str, Download] = MappingProxyType({download.name: download for download in _ALL})

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"glue": tuple(name for name in CATALOGUE if name.startswith("glue-")), "squad": ("squad-v1.1", "squad-v2.0")}
)
"""Names that stand for several downloads."""

WIKIPEDIA = "wikipedia"
MLPERF_TEXT = "mlperf-text"
LISTED: Mapping[str, str] = MappingProxyType(
    {
        WIKIPEDIA: "Wikipedia's articles (--language, --date), compared with the SHA-1 sums beside them",
        MLPERF_TEXT: "text of the MLPerf BERT benchmark, 13 GB, compared with MLCommons' list of MD5 sums",
    }
)
"""Downloads whose files are named by a listing that is fetched first."""


def find_downloads(names: list[str]) -> list[Download]:
    """Return what the names stand for, each once.

    Raises:
        InputError: a name is in no list; names those that are.
    """
    found: dict[str, Download] = {}
    for name in names:
        for member in GROUPS.get(name, (name,)):
            if member not in CATALOGUE:
                known = ", ".join(sorted([*CATALOGUE, *GROUPS, *LISTED]))
                raise InputError(f"fetch: got {name!r}; allowed: {known}")
            found[member] = CATALOGUE[member]
    return list(found.values())
