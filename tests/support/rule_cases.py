"""For every rule between fields one change to the sample job that keeps it and one that breaks it, and no other.

Each module beside this one has the cases of one subject.
"""

from __future__ import annotations

from evaluation_cases import EVALUATION_CASES, EVALUATION_CONTROLLER_CASES
from finetune_cases import FINETUNE_CASES, FINETUNE_CONTROLLER_CASES
from job_cases import JOB_CASES
from pod_cases import POD_CASES, POD_CONTROLLER_CASES, PROFILE_CASES
from preparation_cases import PREPARATION_CASES
from rule_case import RuleCase
from section_cases import SECTION_CASES
from stage_cases import STAGE_CASES, STAGE_CONTROLLER_CASES
from volume_cases import VOLUME_CASES

CONTROLLER_CASES: dict[str, RuleCase] = {
    **POD_CONTROLLER_CASES,
    **STAGE_CONTROLLER_CASES,
    **EVALUATION_CONTROLLER_CASES,
    **FINETUNE_CONTROLLER_CASES,
}
"""Rules that the operator alone checks; why CEL cannot stands at each of them."""

RULE_CASES: dict[str, RuleCase] = {
    **PREPARATION_CASES,
    **EVALUATION_CASES,
    **FINETUNE_CASES,
    **SECTION_CASES,
    **JOB_CASES,
    **POD_CASES,
    **VOLUME_CASES,
    **STAGE_CASES,
    **PROFILE_CASES,
    **CONTROLLER_CASES,
}
