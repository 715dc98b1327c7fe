"""The guide to learning rates: its arithmetic is right, and its examples are stages that a job takes.

Inputs: docs/guides/learning-rates.md. Observed: products and rates in its text, its YAML as a job.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import yaml

from bert_operator.api.parsing.validation import parse_job
from sample_job import sample_document

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "learning-rates.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_every_product_on_the_page_is_what_it_says() -> None:
    products = re.findall(r"([\d,]+) x ([\d,]+) = ([\d,]+)", PAGE)
    assert len(products) >= 8
    for one, other, product in products:
        assert number(one) * number(other) == number(product), (one, other)
    assert (16_320 * 8, 8_160 * 8, 16_320 * 16, 8_160 * 16) == (130_560, 65_280, 261_120, 130_560)
    for total in ("130,560", "65,280", "261,120"):
        assert total in PAGE


def test_rates_of_the_square_root_table_are_square_roots() -> None:
    rows = re.findall(r"\| ([\d,]+) \| 128, then 512 \| LAMB \| (\S+) \| 1/(\d+) \| ([\d,]+) \|", PAGE)
    assert [number(batch) for batch, *_ in rows] == [512, 4096, 16_384, 32_768]
    for batch, rate, share, steps in rows:
        k = number(batch) / 32_768
        assert float(rate) == pytest.approx(5e-3 * math.sqrt(k), rel=2e-3)
        assert 1 / int(share) == pytest.approx(k / 5)
        assert number(batch) * number(steps) == 512_000_000
        # The same number of warm-up steps at every batch, as the page says.
        assert number(steps) / int(share) == 3125


def test_scaled_rates_of_the_examples_follow_the_rule() -> None:
    first, second = (yaml.safe_load(example)["stages"] for example in EXAMPLES)
    for stage, (batch, rate, steps) in zip(first, ((65_536, 6e-3, 7038), (32_768, 4e-3, 1563)), strict=True):
        k = stage["pretrain"]["globalBatchSize"] / batch
        # YAML reads 3e-3 as text; the job's reader does not.
        assert float(stage["pretrain"]["learningRate"]) == pytest.approx(rate * math.sqrt(k))
        assert stage["pretrain"]["length"]["steps"] == steps / k
    (only,) = second
    assert float(only["pretrain"]["learningRate"]) == pytest.approx(1e-4 * math.sqrt(1024 / 256))


@pytest.mark.parametrize("example", EXAMPLES)
def test_its_examples_are_taken(example: str) -> None:
    document = sample_document()
    given = yaml.safe_load(re.sub(r"(\de-\d)", lambda match: f"{float(match[1]):f}", example))
    document["spec"]["optimizer"] = given["optimizer"]
    document["spec"]["stages"] = [document["spec"]["stages"][0], *given["stages"]]
    assert len(parse_job(document).spec.stages) == 1 + len(given["stages"])
