"""WordPiece vocabularies: train one, read one, and tokenize sentences.

Text is normalized and split into words as BERT does (clean-up, optional lower case with accents stripped, spaces around
CJK characters, punctuation on its own), then greedily into the longest pieces found in the vocabulary. The five special
tokens have no meaning inside text: a literal "[SEP]" is split into characters. Splitting and training are Hugging Face
``tokenizers``; the order of the ids is made deterministic here.
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer, models, normalizers, pre_tokenizers, trainers

from bert_trainer.dataset.tokens.byte_bpe import CUT, ByteBpe, find_continuations
from bert_trainer.dataset.tokens.tokenizer_config import read_tokenizer
from bert_trainer.dataset.tokens.tokenizer_json import TOKENIZER_FILE, TokenizerFile, read_tokenizer_json
from bert_trainer.dataset.tokens.word_cache import split_at_spaces
from bert_trainer.dataset.tokens.wordpiece_settings import (
    CONTINUES,
    MAX_WORD_CHARACTERS,
    WordPieceSettings,
)
from bert_trainer.dataset.tokens.wordpiece_settings import SPECIAL_TOKENS as SPECIAL_TOKENS
from bert_trainer.errors import InputError

if TYPE_CHECKING:  # every worker of a build starts with this module, and pydantic would double its start-up time
    from bert_job.run_config import DatasetConfig

VOCABULARY_FILE = "vocab.txt"
MAX_UNKNOWN = 0.005
"""Share of [UNK] in a text's tokens above which its vocabulary fits badly."""
_MIN_TOKENS = 100
"""Of shorter texts a vocabulary that was learnt from them may lack as much: what comes once has no entry."""
_COVERED_CHARACTERS = 0.9999
"""Share of the text whose characters get entries, as far as the vocabulary has room: a word with a character that has
none is [UNK] as a whole. The rest are typos and names in other scripts."""
_ALWAYS_COVERED = 1000
"""Most frequent characters, which get entries whatever their share."""
_MIN_FREQUENCY = 2
_MAX_BYTES = 16 << 20
_MAX_ENTRIES = 1 << 20
"""Of a vocabulary's file: four times as many as the largest that models are published with. Each becomes an object."""
_WORDS_PER_CALL = 4096
"""Words handed to the tokenizer at a time: an encoding costs more than splitting a word."""
_NOT_IN_A_LINE = re.compile("[\n\ud800-\udfff]")
_AROUND = " \t\r"
"""White space at a line's ends that is no part of a token. What Unicode calls so may be one: Google's vocabulary for
Chinese has an entry for U+2028."""
_BERTS_OWN = WordPieceSettings()


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer: tokens in the order of their ids, the ids of the special ones, and how text is split."""

    tokens: tuple[str, ...]
    """Pieces of words, or of byte-level BPE the characters that stand for bytes; an id without an entry has ""."""
    sha256: str
    """Of the bytes of ``vocab.txt``, or of byte-level BPE of ``tokenizer.json``; hexadecimal."""
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    said: WordPieceSettings | ByteBpe | None = None
    """What files beside it say; None where there are none."""

    @property
    def settings(self) -> WordPieceSettings | ByteBpe:
        """Rules by which text is split into these tokens: from its files, else BERT's."""
        return self.said or _BERTS_OWN

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    @property
    def is_byte_level(self) -> bool:
        """Whether it is of byte-level BPE, and not of WordPiece."""
        return isinstance(self.said, ByteBpe)

    @property
    def continuations(self) -> NDArray[np.bool_]:
        """Return for each token whether it continues a word ("##ing"), bool (size,)."""
        if isinstance(self.said, ByteBpe):
            return find_continuations(self.tokens, self.said.matched)
        return np.array([token.startswith(CONTINUES) for token in self.tokens])

    @property
    def file(self) -> tuple[str, bytes]:
        """Name and content of the file that holds it."""
        if isinstance(self.said, ByteBpe):
            return TOKENIZER_FILE, self.said.content
        return VOCABULARY_FILE, _as_lines(self.tokens)


def find_vocabulary_file(folder: Path) -> Path | None:
    """Return a folder's ``vocab.txt``, or else its ``tokenizer.json``; None where it has neither."""
    paths = (folder / name for name in (VOCABULARY_FILE, TOKENIZER_FILE))
    return next((path for path in paths if path.exists()), None)


def vocabulary_path(dataset: DatasetConfig) -> Path:
    """Return where the vocabulary is that a run names or has built; ``vocab.txt`` in its folder where there is none."""
    path = Path(dataset.vocabulary_file or dataset.folder)
    is_folder = dataset.vocabulary_file is None or path.is_dir()
    return (find_vocabulary_file(path) or path / VOCABULARY_FILE) if is_folder else path


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a vocabulary, and what the tokenizer's files beside it say of how text is split.

    Args:
        path: UTF-8, one token per line, the line number (from 0) is the id; or a ``tokenizer.json``.

    Raises:
        InputError: the file is missing, empty, not UTF-8, has an empty line, a token twice, or lacks one of
            the five special tokens; it is larger than any vocabulary; or a setting beside it is not carried out here.
    """
    if path.suffix == ".json":
        file = _read_json(path)
        said: WordPieceSettings | ByteBpe | None = file.settings
        tokens, content = file.tokens, said.content if isinstance(said, ByteBpe) else _as_lines(file.tokens)
        _check_tokens(path, [token for token in tokens if token] if isinstance(said, ByteBpe) else tokens)
    else:
        content = _read_content(path)
        tokens = _split_lines(path, content)
        _check_tokens(path, tokens)
        beside = read_tokenizer(path.parent, tokens)
        said = None if beside is None else beside.settings
    pad_id, unk_id, cls_id, sep_id, mask_id = (tokens.index(token) for token in SPECIAL_TOKENS)
    return Vocabulary(tokens, hashlib.sha256(content).hexdigest(), pad_id, unk_id, cls_id, sep_id, mask_id, said)


def read_tokens(path: Path) -> tuple[str, ...]:
    """Read the tokens of a vocabulary alone, to compare them; raises InputError as ``read_vocabulary``."""
    if path.suffix == ".json":
        tokens = read_tokenizer_json(path).tokens
        _check_tokens(path, [token for token in tokens if token])
    else:
        tokens = _split_lines(path, _read_content(path))
        _check_tokens(path, tokens)
    return tokens


def _as_lines(tokens: Iterable[str]) -> bytes:
    return "".join(f"{token}\n" for token in tokens).encode()


def _read_json(path: Path) -> TokenizerFile:
    """Read a ``tokenizer.json``, whose tokens are those of a ``vocab.txt`` as well."""
    file = (read_tokenizer(path.parent) if path.name == TOKENIZER_FILE else None) or read_tokenizer_json(path)
    for number, token in enumerate(() if isinstance(file.settings, ByteBpe) else file.tokens):
        # Half of a surrogate pair, which JSON can write, is no character.
        if _NOT_IN_A_LINE.search(token) or token != _token_of(token):
            raise InputError(
                f"{path}: model.vocab: entry {number}: got {token!r}; allowed: what a line of vocab.txt can hold",
                hint="a vocabulary of BERT has no entries with line breaks or spaces around them",
            )
    return file


def _token_of(line: str) -> str:
    # An entry of nothing but spaces keeps its place.
    return line.strip(_AROUND) or line.rstrip("\r")


def _split_lines(path: Path, content: bytes) -> tuple[str, ...]:
    try:
        # Not splitlines(): a token may hold what Unicode calls a line break.
        tokens = [_token_of(line) for line in content.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: the vocabulary is not UTF-8 at byte offset {error.start}",
            hint="convert it, or copy it again: a vocabulary is text in UTF-8, one token per line",
        ) from error
    while tokens and not tokens[-1]:
        tokens.pop()
    return tuple(tokens)


def _read_content(path: Path) -> bytes:
    try:
        # Opening a pipe waits for somebody to write into it.
        if stat.S_ISFIFO(path.stat().st_mode):
            raise InputError(f"{path}: cannot read the vocabulary (a pipe); allowed: a file")
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    _check_size(path, content)
    return content


def _unreadable(path: Path, error: OSError) -> InputError:
    hint = None
    if isinstance(error, FileNotFoundError):
        hint = (
            "a run that prepares data writes the vocabulary beside it: let that run succeed first, add a prepare "
            "stage, or name a file in spec.dataset.vocabularyFile"
        )
    return InputError(f"{path}: cannot read the vocabulary ({error.strerror})", hint=hint)


def _check_size(path: Path, content: bytes) -> None:
    got = ""
    if len(content) > _MAX_BYTES:
        got = f"more than {_MAX_BYTES} bytes"
    elif (lines := content.count(b"\n")) > _MAX_ENTRIES:
        got = f"{lines} lines"
    if got:
        raise InputError(
            f"{path}: got {got}; allowed: a vocabulary, of at most {_MAX_ENTRIES} entries",
            hint="name the vocab.txt of a BERT; if this lies beside weights and is none, take it away",
        )


def _check_tokens(path: Path, tokens: Sequence[str]) -> None:
    if problem := _problem(tokens):
        hint = "a vocabulary holds one token per line, as BERT's vocab.txt"
        if path.suffix == ".json":
            hint = "take a tokenizer with BERT's special tokens, by these names: BERT's own or ModernBERT's"
        raise InputError(f"{path}: {problem}", hint=hint)


def _problem(tokens: Sequence[str]) -> str | None:
    if not tokens:
        return "the vocabulary is empty"
    if "" in tokens:
        return f"line {tokens.index('') + 1} of the vocabulary is empty"
    repeated = [token for token, count in Counter(tokens).items() if count > 1]
    if repeated:
        lines = [str(number) for number, token in enumerate(tokens, start=1) if token == repeated[0]]
        more = f" (and {len(repeated) - 1} more tokens)" if len(repeated) > 1 else ""
        return f"the vocabulary has the token {repeated[0]!r} on lines {', '.join(lines[:8])}{more}"
    missing = [token for token in SPECIAL_TOKENS if token not in tokens]
    if missing:
        return f"the vocabulary lacks {', '.join(missing)}"
    return None


def train_vocabulary(sentences: Iterable[str], *, size: int, lower_case: bool) -> bytes:
    """Train a WordPiece vocabulary and return the content of its file. The same text gives the same bytes.

    Args:
        sentences: Iterated over twice, so not an iterator.
        size: Entries at most.
        lower_case: Whether text is lower-cased and loses its accents.
    """
    normalizer, splitter = _normalizer(_BERTS_OWN, lower_case), pre_tokenizers.BertPreTokenizer()
    # The trainer's time grows with the square of a word's length: 5 s for 65,536 letters, and megabytes are read.
    sentences = _WithoutLongWords(sentences, normalizer, splitter)
    starts, inner = _alphabet(sentences, normalizer, splitter, budget=size - len(SPECIAL_TOKENS))
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    # The trainer gives ids to characters inside words ("##x") in the order of a randomly seeded hash map, and breaks
    # ties between merges by id. Named as special tokens, all of them get their ids first and in this order, so that
    # nothing is left to chance. The tokenizer itself is discarded.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=_MIN_FREQUENCY,
        show_progress=False,
        special_tokens=[*SPECIAL_TOKENS, *starts, *(f"{CONTINUES}{character}" for character in inner)],
        limit_alphabet=len(starts),
        initial_alphabet=starts,
        continuing_subword_prefix=CONTINUES,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    ids = tokenizer.get_vocab()  # a hash map, too: sorted by id below
    return "".join(f"{token}\n" for token in sorted(ids, key=lambda token: ids[token])).encode()


@dataclass(frozen=True, slots=True)
class _WithoutLongWords:
    """Sentences without the words that become [UNK] for their length, any number of times."""

    sentences: Iterable[str]
    normalizer: normalizers.Normalizer
    splitter: pre_tokenizers.PreTokenizer

    def __iter__(self) -> Iterator[str]:
        for sentence in self.sentences:
            yield self._shortened(sentence) if _has_long_run(sentence) else sentence

    def _shortened(self, sentence: str) -> str:
        return " ".join(
            part
            for run in sentence.split()
            for part in (self._short_words(run) if len(run) > MAX_WORD_CHARACTERS else (run,))
        )

    def _short_words(self, run: str) -> Iterator[str]:
        # A run is a word with the punctuation around it, or many words that punctuation separates.
        for word, _ in self.splitter.pre_tokenize_str(self.normalizer.normalize_str(run)):
            if len(word) <= MAX_WORD_CHARACTERS:
                yield word


def _has_long_run(sentence: str) -> bool:
    """Return whether a run without spaces is over ``MAX_WORD_CHARACTERS`` long. Cost: 1 ns per character."""
    start = 0
    while len(sentence) - start > MAX_WORD_CHARACTERS:
        space = sentence.rfind(" ", start, start + MAX_WORD_CHARACTERS + 1)
        if space < 0:
            return True
        start = space + 1
    return False


def describe_unknown(share: float) -> str:
    """Return the warning about a vocabulary that fits a text badly. share: of its tokens that are [UNK]."""
    return (
        f"{share:.2%} of the tokens are [UNK], usual is less than {MAX_UNKNOWN:.1%}: the vocabulary lacks characters "
        "of the text (is it one of another language, or too small?), or its words are longer than "
        f"{MAX_WORD_CHARACTERS} characters"
    )


def check_unknown(source: str, num_tokens: int, share: float, allowed: float, remedy: str) -> None:
    """Refuse a text with too many [UNK], unless it is too short to tell.

    Args:
        source: The text, and where the vocabulary is.
        num_tokens: Of the text.
        share: [UNK] of its tokens, in [0, 1].
        allowed: The largest such share.
        remedy: How to go on all the same.

    Raises:
        InputError: more are [UNK] than is allowed.
    """
    if share > allowed and num_tokens >= _MIN_TOKENS:
        raise InputError(
            f"{source}: {share:.2%} of the tokens are [UNK]; allowed: at most {allowed:.4g}",
            hint="take a vocabulary of the text's language and casing, or a larger one where it was learnt from this "
            f"text; to go on all the same, {remedy}",
        )


def _normalizer(settings: WordPieceSettings, lower_case: bool) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(
        clean_text=settings.clean_text,
        handle_chinese_chars=settings.split_chinese,
        strip_accents=settings.strip_accents,
        lowercase=lower_case,
    )


def _alphabet(
    sentences: Iterable[str],
    normalizer: normalizers.Normalizer,
    splitter: pre_tokenizers.PreTokenizer,
    *,
    budget: int,
) -> tuple[list[str], list[str]]:
    """Return the most frequent characters, and those of them that can stand inside a word; both sorted.

    As many as make up ``_COVERED_CHARACTERS`` of the text. budget: entries for both lists together.
    """
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(normalizer.normalize_str(sentence))
    # Ties are broken by the character: the order of a Counter follows the text.
    ranked = sorted((item for item in counts.items() if not item[0].isspace()), key=lambda item: (-item[1], item[0]))
    wanted = _COVERED_CHARACTERS * sum(count for _, count in ranked)
    covered = 0
    starts: list[str] = []
    inner: list[str] = []
    for character, count in ranked:
        if covered >= wanted and len(starts) >= _ALWAYS_COVERED:
            break
        # Punctuation and CJK characters are cut off from the letter before them: never inside a word.
        joins = len(splitter.pre_tokenize_str(normalizer.normalize_str(f"a{character}"))) == 1
        if len(starts) + len(inner) + 1 + joins > budget:
            break
        covered += count
        starts.append(character)
        if joins:
            inner.append(character)
    return sorted(starts), sorted(inner)


def make_tokenizer(vocabulary: Vocabulary, *, lower_case: bool) -> Tokenizer:
    """Return a tokenizer for a vocabulary and its settings, without [CLS] and [SEP].

    lower_case must be what the vocabulary was made with; byte-level BPE does not heed it.
    """
    settings = vocabulary.settings
    if isinstance(settings, ByteBpe):
        return settings.make_tokenizer()
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(
        models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=settings.max_word_characters)
    )
    tokenizer.normalizer = _normalizer(settings, lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


class Encoder:
    """Encodes sentences as token ids of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, *, lower_case: bool) -> None:
        """lower_case must be what the vocabulary was made with."""
        self._tokenizer = make_tokenizer(vocabulary, lower_case=lower_case)
        self._byte_bpe = vocabulary.said if isinstance(vocabulary.said, ByteBpe) else None
        self.between_words = 0 if self._byte_bpe else 1
        """Characters of a text between two of the words that ``split`` makes of it."""
        self.before_next = " " if self._byte_bpe else ""
        """What a sentence begins with that follows another: its first word is one among others."""

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the ids of each sentence, without [CLS] and [SEP]; a sentence may have none.

        The plain way; builds go through ``encode_words`` and a cache, which must give the same ids.
        """
        found = self._tokenizer.encode_batch_fast(list(sentences), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def split(self, texts: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
        """Return the words of texts, end to end, and how many each text has, int64 (texts,): at least one.

        The ids of a text are those of its words together.
        """
        if self._byte_bpe is None:
            # That holds because neither normalizer nor splitter nor WordPiece looks beyond a space.
            return split_at_spaces(texts)
        words = [CUT.split(text) for text in texts] if self._byte_bpe.has_pieces else [[text] for text in texts]
        return list(chain.from_iterable(words)), np.fromiter(map(len, words), dtype=np.int64, count=len(words))

    def encode_words(self, words: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the ids of all words, end to end, int32 (n,), and how many each word has, int64 (words,).

        words: as ``split`` makes them.
        """
        ids: list[int] = []
        counts = np.zeros(len(words), dtype=np.int64)
        for _, encoding in self._encodings(words, counts):
            ids += encoding.ids
        return np.array(ids, dtype=np.int32), counts

    def locate_words(self, words: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return as ``encode_words``, but of each token its id, first character and end in its word, int32 (n, 3).

        Characters are those of the word as it is given, whatever lower case and accents become; white space around a
        token is none of its own. Several tokens of one character have the same place.
        """
        parts = [np.zeros((0, 3), dtype=np.int32)]
        counts = np.zeros(len(words), dtype=np.int64)
        for part, encoding in self._encodings(words, counts):
            offsets: Iterable[tuple[int, int]] = encoding.offsets
            if self._byte_bpe:
                numbers = encoding.word_ids
                offsets = (_trimmed(part[it or 0], *bounds) for it, bounds in zip(numbers, offsets, strict=True))
            bounds = np.fromiter(chain.from_iterable(offsets), dtype=np.int32, count=2 * len(encoding.ids))
            parts.append(np.column_stack([np.array(encoding.ids, dtype=np.int32), bounds.reshape(-1, 2)]))
        return np.concatenate(parts), counts

    def _encodings(self, words: Sequence[str], counts: NDArray[np.int64]) -> Iterator[tuple[Sequence[str], Encoding]]:
        """Yield the words, some thousands at a time, with their encoding; write into ``counts`` the tokens of each."""
        for start in range(0, len(words), _WORDS_PER_CALL):
            part = list(words[start : start + _WORDS_PER_CALL])
            encoding = self._tokenizer.encode(part, is_pretokenized=True, add_special_tokens=False)
            numbers = np.array(encoding.word_ids, dtype=np.int64)
            # A word of nothing but control characters has no id: bincount gives it 0.
            counts[start : start + len(part)] = np.bincount(numbers, minlength=len(part))
            yield part, encoding


def _trimmed(word: str, start: int, end: int) -> tuple[int, int]:
    """Return the part of a word without white space around it; of nothing else, its end."""
    text = word[start:end]
    return end - len(text.lstrip()), max(end - len(text.lstrip()), start + len(text.rstrip()))
