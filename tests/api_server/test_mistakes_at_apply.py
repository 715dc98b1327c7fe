"""Mistakes that people make who come from other BERT scripts or from MPIJobs: ``kubectl apply`` refuses them already.

Every case is told twice: in the API server's words, which hold what its validation and our rules in CEL can say, and
in those of ``bert-operator check``, which add what was found and often what was meant.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bert_job.problems import ABSENT
from bert_operator.api.parsing.validation import parse_job
from bert_operator.errors import InvalidJob
from cluster_api import Api
from control_plane import ControlPlane
from job_changes import Change, both, drop, pretrain, put
from sample_job import EVALUATE, EXPORT, PHASE1, PREPARE, sample_document


@dataclass(frozen=True, slots=True)
class Mistake:
    """What was done, where in the job it is wrong, and what is said by the API server and by us."""

    change: Change
    path: str
    server: tuple[str, ...]
    ours: tuple[str, ...]
    server_path: str = ""
    """Where the API server sees it, if not at ``path``: its rules cannot count a list's entries."""


P1 = "spec.stages[1].pretrain"
CLAIM = {"persistentVolumeClaim": {"claimName": "shared"}}
INTEGER = "must be of type integer"
OBJECT = "must be of type object"


def add_stage(position: int, **stage: object) -> Change:
    return lambda spec: spec["stages"].insert(position, stage)


FROM_BERT_SCRIPTS: dict[str, Mistake] = {
    "train_batch_size": Mistake(
        pretrain(train_batch_size=8192),
        f"{P1}.train_batch_size",
        ("unknown field",),
        ("use globalBatchSize, over all ranks",),
    ),
    "max_seq_length": Mistake(
        pretrain(max_seq_length=128), f"{P1}.max_seq_length", ("unknown field",), ("use sequenceLength",)
    ),
    "max_steps": Mistake(
        pretrain(max_steps=7038), f"{P1}.max_steps", ("unknown field",), ("use length: {steps: N}",)
    ),
    "steps beside the length": Mistake(
        pretrain(steps=7038), f"{P1}.steps", ("unknown field",), ("use length: {steps: N}",)
    ),
    "warmup_proportion": Mistake(
        pretrain(warmup_proportion=0.2843),
        f"{P1}.warmup_proportion",
        ("unknown field",),
        ("use warmup: {proportion: P}",),
    ),
    "gradient_accumulation_steps": Mistake(
        pretrain(gradient_accumulation_steps=128),
        f"{P1}.gradient_accumulation_steps",
        ("unknown field",),
        ("it follows from globalBatchSize and microBatchSize",),
    ),
    "--fp16 as a switch": Mistake(put("fp16", value=True), "spec.fp16", ("unknown field",), ("use precision: fp16",)),
    "--vocab_file in the prepare stage": Mistake(
        put("stages", PREPARE, "prepare", "vocab_file", value="vocab.txt"),
        "spec.stages[0].prepare.vocab_file",
        ("unknown field",),
        ("use vocabularyFile",),
    ),
    "optimizer as a word": Mistake(
        put("optimizer", value="lamb"), "spec.optimizer", (OBJECT,), ('got "lamb"', "indented below it")
    ),
    "LAMB in capitals": Mistake(
        put("optimizer", value={"name": "LAMB"}),
        "spec.optimizer.name",
        ('"lamb", "adamw"',),
        ("lamb | adamw", "did you mean lamb?"),
    ),
    "learning rate that Python reads as text": Mistake(
        pretrain(learningRate="6e-3"),
        f"{P1}.learningRate",
        ("must be of type number",),
        ('got "6e-3"', "without quotes"),
    ),
    "learning rate times a thousand": Mistake(
        pretrain(learningRate=6), f"{P1}.learningRate", ("less than or equal to 1",), ("got 6", "at most 1")
    ),
    "length as a number": Mistake(
        pretrain(length=7038), f"{P1}.length", (OBJECT,), ("got 7038", "epochs, samples, steps")
    ),
    "length in steps and epochs": Mistake(
        pretrain(length={"steps": 7038, "epochs": 40}),
        f"{P1}.length",
        ("exactly one of steps, epochs, samples", "remove all but one"),
        ("got steps and epochs", "exactly one of"),
    ),
    "warm-up as a number": Mistake(
        pretrain(warmup=0.2843), f"{P1}.warmup", (OBJECT,), ("got 0.2843", "proportion, steps")
    ),
    "warm-up longer than the stage": Mistake(
        pretrain(warmup={"steps": 10000}),
        f"{P1}.warmup.steps",
        ("less than the stage's steps", "proportion: 0.1"),
        ("got 10000", "less than the stage's 100 steps"),
    ),
    "batch of one GPU": Mistake(
        both(put("workers", value=16), put("slotsPerWorker", value=8)),
        f"{P1}.globalBatchSize",
        ("stages[].pretrain.globalBatchSize", "workers x slotsPerWorker", "multiply it by the number of ranks"),
        ("got 64", "at least 128"),
        server_path="spec",
    ),
    "micro-batch and batch exchanged": Mistake(
        pretrain(microBatchSize=8192),
        f"{P1}.microBatchSize",
        ("at most globalBatchSize", "one pass on one rank"),
        ("got 8192", "at most globalBatchSize 64"),
    ),
    "phase 2 with positions for phase 1": Mistake(
        both(put("model", "maxPositionEmbeddings", value=128), pretrain(sequenceLength=512)),
        f"{P1}.sequenceLength",
        ("at most model.maxPositionEmbeddings", "raise model.maxPositionEmbeddings"),
        ("got 512", "at most model.maxPositionEmbeddings 128"),
        server_path="spec",
    ),
    "predictions of phase 2 in phase 1": Mistake(
        pretrain(sequenceLength=64, maxPredictionsPerSequence=80),
        f"{P1}.maxPredictionsPerSequence",
        ("at most sequenceLength less", "leave the field out"),
        ("got 80", "at most 61"),
    ),
    "model by Hugging Face's name": Mistake(
        put("model", "preset", value="bert-large-uncased"),
        "spec.model.preset",
        ('"tiny", "base", "large", "distilbert"',),
        ("tiny | base | large | distilbert",),
    ),
    "model as a word": Mistake(put("model", value="base"), "spec.model", (OBJECT,), ('got "base"', "preset")),
    "num_hidden_layers": Mistake(
        put("model", "num_hidden_layers", value=24),
        "spec.model.num_hidden_layers",
        ("unknown field",),
        ("write numHiddenLayers",),
    ),
    "width that the heads do not divide": Mistake(
        put("model", "hiddenSize", value=129),
        "spec.model.numAttentionHeads",
        ("a divisor of hiddenSize", "64 x numAttentionHeads"),
        ("got 2", "a divisor of hiddenSize 129"),
    ),
    "init checkpoint with foreign moments": Mistake(
        put("initialCheckpoint", value={"path": "bert", "format": "huggingface", "load": "weightsAndOptimizer"}),
        "spec.initialCheckpoint.load",
        ("only checkpoints of bert-trainer and nvidia", "load: weights"),
        ("got weightsAndOptimizer from huggingface",),
    ),
    "init checkpoint as a path": Mistake(
        put("initialCheckpoint", value="bert/ckpt"), "spec.initialCheckpoint", (OBJECT,), ("format, load, path",)
    ),
    "save_checkpoints_steps": Mistake(
        put("checkpoint", value={"saveCheckpointsSteps": 200}),
        "spec.checkpoint.saveCheckpointsSteps",
        ("unknown field",),
        ("a field that does not exist here", "everySteps"),
    ),
    "two data sets in one job": Mistake(
        add_stage(2, name="prepare2", prepare={"text": "books"}),
        "spec.stages[2].prepare",
        ("one prepare stage at most", "for two datasets write two jobs"),
        ("position 3", "one prepare stage at most"),
        server_path="spec.stages",
    ),
    "no data anywhere": Mistake(
        drop("stages", PREPARE),
        "spec.dataset.path",
        ("name the dataset's folder, add a prepare stage",),
        ("required", "spec.stages[0].pretrain"),
    ),
    "evaluation only": Mistake(
        lambda spec: spec.update(stages=[spec["stages"][PREPARE], spec["stages"][EVALUATE], spec["stages"][PHASE1]]),
        "spec.stages[1].evaluate",
        ("evaluate only after a pretrain stage", "move them behind it"),
        ("evaluate before any stage that trains",),
        server_path="spec.stages",
    ),
    "phases with one name": Mistake(
        put("stages", EXPORT, "name", value="phase1"),
        "spec.stages[3].name",
        ("Duplicate value",),
        ('got "phase1"', "rename one of them"),
        server_path="spec.stages[3]",
    ),
    "phase as one object": Mistake(
        put("stages", EVALUATE, "pretrain", value={
            "sequenceLength": 512, "globalBatchSize": 64, "learningRate": 0.004, "length": {"steps": 10},
        }),
        "spec.stages[2]",
        ("exactly one of prepare, pretrain, evaluate, finetune, export", "one stage for each"),
        ("got pretrain and evaluate",),
    ),
}  # fmt: skip

FROM_MPI_JOBS: dict[str, Mistake] = {
    "mpiReplicaSpecs": Mistake(
        put("mpiReplicaSpecs", value={"Worker": {"replicas": 2}}),
        "spec.mpiReplicaSpecs",
        ("unknown field",),
        ("use workers, and worker and launcher for what differs",),
    ),
    "worker with replicas": Mistake(
        put("worker", value={"replicas": 2}),
        "spec.worker.replicas",
        ("unknown field",),
        ("use spec.workers",),
    ),
    "mpiImplementation": Mistake(
        put("mpiImplementation", value="Intel"),
        "spec.mpiImplementation",
        ("unknown field",),
        ("use mpi: {implementation: ...}",),
    ),
    "OpenMPI in small letters": Mistake(
        put("mpi", value={"implementation": "openmpi"}),
        "spec.mpi.implementation",
        ('"OpenMPI", "Intel", "MPICH"',),
        ("did you mean OpenMPI?",),
    ),
    "cleanPodPolicy": Mistake(
        put("runPolicy", value={"cleanPodPolicy": "Running"}),
        "spec.runPolicy.cleanPodPolicy",
        ("unknown field",),
        ("leave it out: pods that ended stay",),
    ),
    "backoffLimit": Mistake(
        put("runPolicy", value={"backoffLimit": 3}),
        "spec.runPolicy.backoffLimit",
        ("unknown field",),
        ("use applicationRetries and infrastructureRetries",),
    ),
    "limits as in a pod": Mistake(
        put("resources", value={"limits": {"nvidia.com/gpu": 8}}),
        "spec.resources.limits",
        ("unknown field",),
        ("use accelerator, cpu and memory",),
    ),
    "one GPU for two ranks": Mistake(
        put("resources", value={"accelerator": {"perWorker": 1}}),
        "spec.resources.accelerator.perWorker",
        ("at least slotsPerWorker", "leave the field out for one device per slot"),
        ("got 1", "at least slotsPerWorker 2"),
    ),
    "cores as a fraction": Mistake(
        put("resources", value={"cpu": 1.5}), "spec.resources.cpu", (INTEGER,), ("got 1.5", "put it in quotes")
    ),
    "gigabytes": Mistake(
        put("resources", value={"memory": "64GB"}),
        "spec.resources.memory",
        ("should match", "Gi"),
        ('got "64GB"', "a unit of m, k, Ki"),
    ),
    "variables as a map": Mistake(
        put("env", value={"NCCL_DEBUG": "INFO"}),
        "spec.env",
        ("unknown field",),
        ("a list of 0 to 128 entries", "begin every entry with '- '"),
        server_path="spec.env.NCCL_DEBUG",
    ),
    "variable as a number": Mistake(
        put("env", value=[{"name": "OMP_NUM_THREADS", "value": 4}]),
        "spec.env[0].value",
        ("must be of type string",),
        ("got 4", "put it in quotes"),
    ),
    "valueFrom": Mistake(
        put("env", value=[{"name": "KEY", "value": "", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]),
        "spec.env[0].valueFrom",
        ("unknown field",),
        ("use secret: {name: ..., key: ...}",),
    ),
    "HOME for a random user": Mistake(
        put("env", value=[{"name": "HOME", "value": "/tmp"}]),
        "spec.env[0].name",
        ("neither the operator nor mpi-operator sets",),
        ("got HOME", "its value would be lost"),
    ),
    "variable twice": Mistake(
        put("env", value=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
        "spec.env[1].name",
        ("Duplicate value",),
        ('got "A"', "remove one of them"),
        server_path="spec.env[1]",
    ),
    "volume as in a pod": Mistake(
        put("volumes", value=[{"name": "data", "source": {**CLAIM, "mountPath": "/mnt/x"}, "emptyDir": {}}]),
        "spec.volumes[0].emptyDir",
        ("unknown field",),
        ("name, readOnly, source",),
    ),
    "claim without its section": Mistake(
        put("output", "volume", value={"claimName": "shared", "hostPath": {"path": "/data"}}),
        "spec.output.volume.claimName",
        ("unknown field",),
        ("move it to spec.output.volume.persistentVolumeClaim",),
    ),
    "mount with a closing slash": Mistake(
        put("output", "volume", value={**CLAIM, "mountPath": "/mnt/out/"}),
        "spec.output.volume.mountPath",
        ("should match",),
        ('got "/mnt/out/"', "an absolute path without"),
    ),
    "mount over the image": Mistake(
        put("output", "volume", value={**CLAIM, "mountPath": "/usr/local/data"}),
        "spec.output.volume.mountPath",
        ("a folder outside /dev, /etc", "below /mnt"),
        ("got /usr/local/data",),
    ),
    "two volumes in one place": Mistake(
        both(
            put("output", "volume", value={**CLAIM, "mountPath": "/mnt/data"}),
            put("dataset", value={"volume": {**CLAIM, "mountPath": "/mnt/data"}}),
        ),
        "spec.output.volume.mountPath",
        ("mountPath of dataset, output and workspace", "choose another folder"),
        ("spec.dataset.volume is mounted there",),
        server_path="spec",
    ),
    "secrets of a registry as words": Mistake(
        put("imagePullSecrets", value=["regcred"]),
        "spec.imagePullSecrets[0]",
        (OBJECT,),
        ('got "regcred"', "an object with the fields name"),
    ),
    "pull policy in small letters": Mistake(
        put("imagePullPolicy", value="ifnotpresent"),
        "spec.imagePullPolicy",
        ('"Always", "IfNotPresent", "Never"',),
        ("did you mean IfNotPresent?",),
    ),
    "label that YAML reads as true": Mistake(
        put("scheduling", value={"nodeSelector": {"gpu": True}}),
        "spec.scheduling.nodeSelector.gpu",
        ("must be of type string",),
        ("got true", "put it in quotes"),
    ),
    "toleration with operator and value": Mistake(
        put("scheduling", value={"tolerations": [{"key": "gpu", "operator": "Exists", "value": "true"}]}),
        "spec.scheduling.tolerations[0].value",
        ("none with operator: Exists", "operator: Equal"),
        ("got true", "none with operator: Exists"),
    ),
    "nodeSelector beside scheduling": Mistake(
        put("nodeSelector", value={"gpu": "a100"}),
        "spec.nodeSelector",
        ("unknown field",),
        ("move it to one of", "spec.scheduling"),
    ),
    "user in quotes": Mistake(
        put("securityContext", value={"runAsUser": "1000"}),
        "spec.securityContext.runAsUser",
        (INTEGER,),
        ('got "1000"', "without quotes"),
    ),
    "root with a group of volumes": Mistake(
        put("securityContext", value={"runAsUser": 0, "fsGroup": 0}),
        "spec.securityContext.fsGroup",
        ("none for root", "leave fsGroup out"),
        ("got 0", "none for root"),
    ),
    "workers in quotes": Mistake(put("workers", value="2"), "spec.workers", (INTEGER,), ("without quotes",)),
    "no slots": Mistake(
        put("slotsPerWorker", value=0), "spec.slotsPerWorker", ("greater than or equal to 1",), ("at least 1",)
    ),
    "image with a blank": Mistake(
        put("image", value="trainer: latest"), "spec.image", ("should match",), ("without spaces",)
    ),
    "no output": Mistake(drop("output"), "spec.output", ("Required value",), ("required", "add it")),
}

FROM_INTEL: dict[str, Mistake] = {
    "pinning as a switch": Mistake(
        put("cpu", value={"pinning": True}),
        "spec.cpu.pinning",
        ('"none", "core", "socket", "numa"',),
        ("got true", "none | core | socket | numa"),
    ),
    "three ranks on two sockets": Mistake(
        both(put("slotsPerWorker", value=3), put("cpu", value={"pinning": "socket", "sockets": 2})),
        "spec.slotsPerWorker",
        ("a multiple of cpu.sockets", "as the number of sockets"),
        ("got 3", "a multiple of cpu.sockets 2", "slotsPerWorker: 2"),
    ),
    "cores per rank as a quantity": Mistake(
        put("cpu", value={"coresPerRank": "28"}), "spec.cpu.coresPerRank", (INTEGER,), ("without quotes",)
    ),
    "bfloat16": Mistake(
        put("precision", value="bfloat16"),
        "spec.precision",
        ('"fp32", "tf32", "bf32", "avx-fp32", "bf16", "fp16", "fp64"',),
        ("did you mean bf16",),
    ),
    "AMX as an instruction set": Mistake(
        put("cpu", value={"dnnlMaxCpuIsa": "AMX"}), "spec.cpu.dnnlMaxCpuIsa", ("AVX512_CORE_AMX",), ("AVX512_CORE_AMX",)
    ),
}

AT_APPLY = {**FROM_BERT_SCRIPTS, **FROM_MPI_JOBS, **FROM_INTEL}

# What only the operator sees; the job then gets the condition Invalid.
IN_THE_OPERATOR: dict[str, Mistake] = {
    "huge pages alone": Mistake(
        put("resources", value={"hugepages": {"2Mi": "1Gi"}}),
        "spec.resources.memory",
        (),
        ("required", "only together with memory", "add resources.memory"),
    ),
    "pinning by socket without their number": Mistake(
        put("cpu", value={"pinning": "socket"}),
        "spec.cpu.sockets",
        (),
        ("required", "the number of sockets of a node", "add sockets, or choose another pinning"),
    ),
    "more predictions than an inherited length has": Mistake(
        put("stages", EVALUATE, "evaluate", "maxPredictionsPerSequence", value=160),
        "spec.stages[2].evaluate.maxPredictionsPerSequence",
        (),
        ("got 160", "at most 125"),
    ),
}


def test_the_table_is_long_enough_to_mean_something() -> None:
    assert len(AT_APPLY) == len(FROM_BERT_SCRIPTS) + len(FROM_MPI_JOBS) + len(FROM_INTEL) >= 40


@pytest.mark.parametrize("case", AT_APPLY)
def test_the_api_server_refuses_it_and_says_where(api: Api, case: str) -> None:
    mistake = AT_APPLY[case]
    answer = api.create(sample_document(mistake.change), "default", dry_run=True)
    assert answer.status in (400, 422), "accepted"
    path = mistake.server_path or mistake.path
    assert f"{path}: " in answer.message or f'unknown field "{path}"' in answer.message, answer.message
    assert all(word in answer.message for word in mistake.server), answer.message


@pytest.mark.parametrize("case", IN_THE_OPERATOR)
def test_the_api_server_lets_it_pass(api: Api, case: str) -> None:
    api.create(sample_document(IN_THE_OPERATOR[case].change), "default", dry_run=True).expect(201)


@pytest.mark.parametrize("case", {**AT_APPLY, **IN_THE_OPERATOR})
def test_the_operator_names_it_alone_with_the_next_step(case: str) -> None:
    mistake = {**AT_APPLY, **IN_THE_OPERATOR}[case]
    with pytest.raises(InvalidJob) as caught:
        parse_job(sample_document(mistake.change))
    assert [problem.path for problem in caught.value.problems] == [mistake.path]
    text = str(caught.value)
    shape = (": required: ",) if caught.value.problems[0].got == ABSENT else ("got ", "allowed: ")
    assert all(word in text for word in (*shape, "next: ", *mistake.ours)), text


def test_kubectl_prints_every_problem_on_its_own_line(control_plane: ControlPlane, api: Api) -> None:
    answer = api.create(
        sample_document(both(pretrain(microBatchSize=65), put("cpu", value={"pinning": "socket", "sockets": 3}))),
        "default",
    )
    causes = {cause["field"]: cause["message"] for cause in answer.body["details"]["causes"]}
    assert causes.keys() == {f"{P1}.microBatchSize", "spec.slotsPerWorker"}
    assert all("allowed: " in message and "next: " in message for message in causes.values())
