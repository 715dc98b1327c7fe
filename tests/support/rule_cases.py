"""For every rule between fields one change to the sample job that keeps it and one that breaks it, and no other.

Grouped as in ``api.rules``: rules inside one section (``section_rules``), those of the whole job (``job_rules``,
``pod_rules``) and those inside a stage (``stage_rules``). Cases of data preparation are in ``preparation_cases``,
those of evaluation in ``evaluation_cases``.
"""

from __future__ import annotations

from evaluation_cases import EVALUATION_CASES, EVALUATION_CONTROLLER_CASES
from finetune_cases import FINETUNE_CASES, FINETUNE_CONTROLLER_CASES
from job_changes import LARGE_ENV, Change, Spec, both, drop, pretrain, put
from preparation_cases import PREPARATION_CASES
from rule_case import RuleCase
from sample_job import EVALUATE, EXPORT, PHASE1, PREPARE

CLAIM = {"persistentVolumeClaim": {"claimName": "shared"}}
P1 = "spec.stages[1].pretrain"


def volume(**fields: object) -> dict[str, object]:
    return {**CLAIM, **fields}


def volumes(*mounts: str) -> list[dict[str, object]]:
    return [{"name": f"v{number}", "source": volume(mountPath=mount)} for number, mount in enumerate(mounts)]


def variable(**fields: object) -> Change:
    return put("env", value=[{"name": "NCCL_DEBUG", **fields}])


def toleration(**fields: object) -> Change:
    return put("scheduling", "tolerations", value=[fields])


def terms(operator: str, *values: str) -> Change:
    required = {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": operator, "values": list(values)}]}]
    }
    path = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    return put("scheduling", *path, value=required)


def selector(operator: str, *values: str) -> Change:
    expressions = [{"key": "app", "operator": operator, "values": list(values)}]
    spread = {"topologyKey": "zone", "labelSelector": {"matchExpressions": expressions}}
    return put("scheduling", "topologySpreadConstraints", value=[spread])


def shards(vocabulary: bool) -> Change:
    """Let every stage name its shards, and prepare none."""
    changes = (pretrain(shards="s"), put("stages", EVALUATE, "evaluate", "shards", value="h"), drop("stages", PREPARE))
    dataset = put("dataset", value={"vocabularyFile": "vocab.txt"} if vocabulary else {})
    return both(*changes, dataset)


def move(stage: int, to: int) -> Change:
    return lambda spec: spec["stages"].insert(to, spec["stages"].pop(stage))


def only(*stages: int) -> Change:
    def change(spec: Spec) -> None:
        spec["stages"] = [spec["stages"][stage] for stage in stages]

    return change


def evaluate(**fields: object) -> Change:
    return put("stages", EVALUATE, "evaluate", value=fields)


SECTION_CASES: dict[str, RuleCase] = {
    "volume in one way": RuleCase(
        put("output", "volume", value=volume(mountPath="/mnt/results", subPath="bert")),
        put("output", "volume", value=volume(nfs={"server": "nas", "path": "/export"})),
        "spec.output.volume",
        ("got persistentVolumeClaim and nfs", "exactly one of persistentVolumeClaim, nfs, hostPath"),
    ),
    "volume in some way": RuleCase(
        put("output", "volume", value={"hostPath": {"path": "/data"}}),
        put("output", "volume", value={"mountPath": "/data"}),
        "spec.output.volume",
        ("got nothing", "in one way"),
    ),
    "volume outside the system's folders": RuleCase(
        put("dataset", value={"volume": volume(mountPath="/tmpfs")}),
        put("dataset", value={"volume": volume(mountPath="/tmp/data")}),
        "spec.dataset.volume.mountPath",
        ("got /tmp/data", "outside /dev, /etc", "below /mnt"),
    ),
    "further volume with a place": RuleCase(
        put("volumes", value=volumes("/mnt/a")),
        put("volumes", value=[{"name": "a", "source": CLAIM}]),
        "spec.volumes[0].source.mountPath",
        ("got nothing", "an absolute path"),
    ),
    "variable with one value": RuleCase(
        variable(secret={"name": "keys", "key": "wandb"}),
        variable(value="INFO", configMap={"name": "keys", "key": "wandb"}),
        "spec.env[0]",
        ("got value and configMap", "exactly one of value, secret, configMap"),
    ),
    "variable with a value": RuleCase(variable(value=""), variable(), "spec.env[0]", ("got nothing", 'value: ""')),
    "variable of the user's own": RuleCase(
        variable(value="INFO"),
        put("env", value=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        "spec.env[0].name",
        ("got NVIDIA_VISIBLE_DEVICES", "its value would be lost"),
    ),
    "no key": RuleCase(variable(value=""), put("envFrom", value=[{"secret": "a-a1-ssh"}]), "spec.envFrom[0].secret"),
    "no key in one variable": RuleCase(
        variable(secret={"name": "a-a1-keys", "key": "k"}),
        variable(secret={"name": "a-a1-ssh", "key": "k"}),
        "spec.env[0].secret.name",
        ("got a-a1-ssh", "another name"),
    ),
    "size": RuleCase(variable(value=""), put("env", value=LARGE_ENV), "spec", ("at most 256 KiB as a whole",)),
    "source of variables": RuleCase(
        put("envFrom", value=[{"secret": "keys", "prefix": "W_"}]),
        put("envFrom", value=[{"secret": "keys", "configMap": "settings"}]),
        "spec.envFrom[0]",
        ("got secret and configMap", "one entry for each"),
    ),
    "group of volumes": RuleCase(
        put("securityContext", value={"runAsUser": 1000, "fsGroup": 1000}),
        put("securityContext", value={"runAsUser": 0, "fsGroup": 1000}),
        "spec.securityContext.fsGroup",
        ("got 1000", "none for root"),
    ),
    "values of a pod's labels": RuleCase(
        selector("Exists"),
        selector("In"),
        "spec.scheduling.topologySpreadConstraints[0].labelSelector.matchExpressions[0].values",
        ("got 0 with operator In", "at least one for In"),
    ),
    "no values of a pod's labels": RuleCase(
        selector("In", "a", ""),
        selector("DoesNotExist", "a"),
        "spec.scheduling.topologySpreadConstraints[0].labelSelector.matchExpressions[0].values",
        ("got 1 with operator DoesNotExist",),
    ),
    "values of a node's labels": RuleCase(
        terms("Gt", "3"),
        terms("Lt", "3", "4"),
        "spec.scheduling.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].values",
        ("got 2 with operator Lt", "one for Gt and Lt"),
    ),
    "taint by name": RuleCase(
        toleration(operator="Exists"),
        toleration(value="a"),
        "spec.scheduling.tolerations[0].key",
        ("got nothing", "which takes every taint"),
    ),
    "taint by its value": RuleCase(
        toleration(key="a", value="b"),
        toleration(key="a", operator="Exists", value="b"),
        "spec.scheduling.tolerations[0].value",
        ("got b", "none with operator: Exists"),
    ),
    "taint for some time": RuleCase(
        toleration(key="a", operator="Exists", effect="NoExecute", tolerationSeconds=0),
        toleration(key="a", operator="Exists", effect="NoSchedule", tolerationSeconds=0),
        "spec.scheduling.tolerations[0].effect",
        ("got NoSchedule", "NoExecute together with tolerationSeconds"),
    ),
    "moments of another trainer": RuleCase(
        put("initialCheckpoint", value={"path": "p", "load": "weightsAndOptimizer", "format": "nvidia"}),
        put("initialCheckpoint", value={"path": "p", "load": "weightsAndOptimizer", "format": "huggingface"}),
        "spec.initialCheckpoint.load",
        ("got weightsAndOptimizer from huggingface", "load: weights"),
    ),
}

JOB_CASES: dict[str, RuleCase] = {
    "sizes of the model": RuleCase(
        put(
            "model",
            value={"hiddenSize": 64, "numHiddenLayers": 2, "numAttentionHeads": 2, "intermediateSize": 256},
        ),
        put("model", value={"hiddenSize": 64, "numHiddenLayers": 2, "numAttentionHeads": 2}),
        "spec.model.intermediateSize",
        ("a preset, or all of",),
    ),
    "one source of the model": RuleCase(
        put("model", value={"configFile": "bert_config.json", "objective": "mlm", "vocabularyPadMultiple": 64}),
        put("model", value={"configFile": "bert_config.json", "preset": "base"}),
        "spec.model.configFile",
        ('"bert_config.json", and preset as well', "leave the others out"),
    ),
    "one source of the model's dropout": RuleCase(
        put("model", value={"configFile": "c.json", "hiddenDropout": 0.1, "maxPositionEmbeddings": 512}),
        put("model", value={"configFile": "c.json", "hiddenDropout": 0, "maxPositionEmbeddings": 128}),
        "spec.model.configFile",
        ("and maxPositionEmbeddings, hiddenDropout as well",),
    ),
    "positions of a model in a file": RuleCase(
        both(put("model", value={"configFile": "c.json"}), pretrain(sequenceLength=1024)),
        both(put("model", value={"preset": "tiny"}), pretrain(sequenceLength=1024)),
        "spec.stages[1].pretrain.sequenceLength",
        ("at most model.maxPositionEmbeddings",),
    ),
    "heads of equal width": RuleCase(
        put("model", value={"preset": "base", "numAttentionHeads": 16}),
        put("model", value={"preset": "base", "hiddenSize": 770}),
        "spec.model.numAttentionHeads",
        ("got 12", "a divisor of hiddenSize 770"),
    ),
    "a head for every loss": RuleCase(
        put("model", value={"preset": "distilbert", "architecture": "bert", "objective": "mlm+nsp"}),
        put("model", value={"preset": "tiny", "architecture": "distilbert", "objective": "mlm+nsp"}),
        "spec.model.objective",
        ("no pooler",),
    ),
    "a model that TensorFlow 1 expresses": RuleCase(
        put("stages", EXPORT, "export", value={"format": "tensorflow"}),
        both(
            put("model", value={"preset": "distilbert"}),
            put("stages", EXPORT, "export", value={"format": "tensorflow"}),
        ),
        "spec.stages[3].export.format",
        ("architecture: bert", "export in another format"),
    ),
    "a LayerNorm that TensorFlow 1 expresses": RuleCase(
        put("model", "layerNormEpsilon", value=1e-5),
        both(
            put("model", "layerNormEpsilon", value=1e-5),
            put("stages", EXPORT, "export", value={"format": "tensorflow"}),
        ),
        "spec.stages[3].export.format",
        ("layerNormEpsilon 1e-12",),
    ),
    "names of stages": RuleCase(
        put("stages", EXPORT, "name", value="phase2"),
        put("stages", EXPORT, "name", value="phase1"),
        "spec.stages[3].name",
        ("spec.stages[1] has this one",),
    ),
    "data before its use": RuleCase(
        only(PREPARE, PHASE1),
        move(PREPARE, to=2),
        "spec.stages[2].prepare",
        ("only as the first stage",),
    ),
    "results after training": RuleCase(
        move(EXPORT, to=EVALUATE),
        move(EVALUATE, to=PHASE1),
        "spec.stages[1].evaluate",
        ("evaluate only after a pretrain stage",),
    ),
    "a reader of the data": RuleCase(
        only(PREPARE, PHASE1, EXPORT),
        only(PREPARE),
        "spec.stages[0].prepare",
        ("together with pretrain stages",),
    ),
    "a source of the data": RuleCase(
        both(drop("stages", PREPARE), put("dataset", value={"path": "data"})),
        both(drop("stages", PREPARE), put("dataset", value={"vocabularyFile": "vocab.txt"})),
        "spec.dataset.path",
        ("spec.stages[0].pretrain and spec.stages[1].evaluate",),
    ),
    "a vocabulary for shards": RuleCase(
        shards(vocabulary=True),
        shards(vocabulary=False),
        "spec.dataset.vocabularyFile",
        ("the vocabulary that the shards were made with",),
    ),
    "one vocabulary": RuleCase(
        both(
            put("dataset", value={"vocabularyFile": "vocab.txt"}),
            drop("stages", PREPARE, "prepare", "vocabularySize"),
        ),
        put("dataset", value={"vocabularyFile": "vocab.txt"}),
        "spec.stages[0].prepare.vocabularySize",
        ("this or dataset.vocabularyFile",),
    ),
    "folders of data and results": RuleCase(
        put("dataset", value={"path": "runs/demo/data"}),
        put("dataset", value={"path": "runs/demo//"}),
        "spec.dataset.path",
        ("which is output.path",),
    ),
    "folders with line breaks": RuleCase(
        both(put("dataset", value={"path": "a\nb"}), put("output", "path", value="a\nc")),
        both(put("dataset", value={"path": "a\nb"}), put("output", "path", value="a\nb/")),
        "spec.dataset.path",
        ("which is output.path",),
    ),
    "equal ranks on sockets": RuleCase(
        both(put("cpu", value={"pinning": "socket", "sockets": 2}), put("slotsPerWorker", value=4)),
        both(put("cpu", value={"pinning": "socket", "sockets": 2}), put("slotsPerWorker", value=3)),
        "spec.slotsPerWorker",
        ("got 3", "a multiple of cpu.sockets 2", "slotsPerWorker: 2"),
    ),
    "equal ranks on NUMA nodes": RuleCase(
        both(put("cpu", value={"pinning": "numa", "numaNodes": 4}), put("slotsPerWorker", value=4)),
        both(put("cpu", value={"pinning": "numa", "numaNodes": 4, "sockets": 2})),
        "spec.slotsPerWorker",
        ("got 2", "a multiple of cpu.numaNodes 4", "slotsPerWorker: 4"),
    ),
    "ranks counted once": RuleCase(
        both(put("cpu", value={"ranksPerNode": "auto", "sockets": 2}), put("slotsPerWorker", value=1)),
        put("cpu", value={"ranksPerNode": "auto", "sockets": 2}),
        "spec.slotsPerWorker",
        ("got 2", "none with cpu.ranksPerNode: auto", "leave one of the two out"),
    ),
    "counted ranks in a batch": RuleCase(
        both(put("cpu", value={"ranksPerNode": "auto", "sockets": 8}), put("slotsPerWorker", value=1)),
        both(
            put("cpu", value={"ranksPerNode": "auto", "sockets": 8, "numaNodes": 64, "pinning": "numa"}),
            put("slotsPerWorker", value=1),
            put("stages", 1, "pretrain", "globalBatchSize", value=63),
        ),
        "spec.stages[1].pretrain.globalBatchSize",
        ("got 63", "64"),
    ),
    "a precision of processors": RuleCase(
        put("precision", value="bf32"),
        both(put("precision", value="bf32"), put("resources", value={"accelerator": {}})),
        "spec.precision",
        ('got "bf32"', "tf32, bf16, fp16 or fp32", "write tf32"),
    ),
    "a precision of processors, workers apart": RuleCase(
        both(
            put("precision", value="avx-fp32"),
            put("resources", value={"accelerator": {}}),
            put("worker", value={"resources": {"cpu": 4}}),
        ),
        both(put("precision", value="avx-fp32"), put("worker", value={"resources": {"accelerator": {}}})),
        "spec.precision",
        ('got "avx-fp32"', "leave the accelerator out"),
    ),
    "exact arithmetic, compressed": RuleCase(
        put("reduction", value={"compression": "fp16"}),
        both(put("precision", value="fp64"), put("reduction", value={"compression": "fp16"})),
        "spec.reduction.compression",
        ('got "fp16"', "none with precision fp64", "leave it out"),
    ),
    "a device for every rank": RuleCase(
        put("resources", value={"accelerator": {"perWorker": 2}}),
        put("resources", value={"accelerator": {"perWorker": 1}}),
        "spec.resources.accelerator.perWorker",
        ("got 1", "at least slotsPerWorker 2", "leave the field out"),
    ),
    "a device for every rank, workers apart": RuleCase(
        put("worker", value={"resources": {"accelerator": {}}}),
        put("worker", value={"resources": {"accelerator": {"perWorker": 1}}}),
        "spec.worker.resources.accelerator.perWorker",
        ("got 1", "at least slotsPerWorker 2"),
    ),
    "names of variables": RuleCase(
        put("env", value=[{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]),
        put("env", value=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
        "spec.env[1].name",
        ('got "A"', "a name that no other entry has"),
    ),
    "names of volumes": RuleCase(
        put("volumes", value=volumes("/mnt/a", "/mnt/b")),
        put("volumes", value=[{**entry, "name": "v"} for entry in volumes("/mnt/a", "/mnt/b")]),
        "spec.volumes[1].name",
        ('got "v"', "a name that no other entry has"),
    ),
    "places of data and results": RuleCase(
        both(put("dataset", value={"volume": CLAIM}), put("output", "volume", value=CLAIM)),
        both(put("dataset", value={"volume": CLAIM}), put("output", "volume", value=volume(mountPath="/mnt/dataset"))),
        "spec.output.volume.mountPath",
        ("a folder of its own", "spec.dataset.volume is mounted there"),
    ),
    "places of results and code": RuleCase(
        both(put("workspace", value={"volume": CLAIM, "command": ["x"]}), put("output", "volume", value=CLAIM)),
        both(
            put("workspace", value={"volume": volume(mountPath="/mnt/output"), "command": ["x"]}),
            put("output", "volume", value=CLAIM),
        ),
        "spec.workspace.volume.mountPath",
        ("spec.output.volume is mounted there",),
    ),
    "places of further volumes": RuleCase(
        both(put("output", "volume", value=CLAIM), put("volumes", value=volumes("/mnt/output/a"))),
        both(put("output", "volume", value=CLAIM), put("volumes", value=volumes("/mnt/output"))),
        "spec.volumes[0].source.mountPath",
        ("spec.output.volume is mounted there",),
    ),
    "places of two further volumes": RuleCase(
        put("volumes", value=volumes("/mnt/a", "/mnt/a/b")),
        put("volumes", value=volumes("/mnt/a", "/mnt/a")),
        "spec.volumes[1].source.mountPath",
        ("spec.volumes[0].source is mounted there",),
    ),
}

STAGE_CASES: dict[str, RuleCase] = {
    "one kind": RuleCase(
        put("stages", EVALUATE, value={"name": "evaluate", "export": {"format": "huggingface"}}),
        put("stages", EVALUATE, "export", value={}),
        "spec.stages[2]",
        ("got evaluate and export", "exactly one of prepare, pretrain, evaluate, finetune, export"),
    ),
    "some kind": RuleCase(
        lambda spec: spec["stages"].append({"name": "x", "export": {}}),
        lambda spec: spec["stages"].append({"name": "x"}),
        "spec.stages[4]",
        ("got nothing",),
    ),
    "positions": RuleCase(
        pretrain(sequenceLength=512),
        pretrain(sequenceLength=513),
        f"{P1}.sequenceLength",
        ("got 513", "maxPositionEmbeddings 512"),
    ),
    "positions of an evaluation": RuleCase(
        evaluate(sequenceLength=512),
        evaluate(sequenceLength=513),
        "spec.stages[2].evaluate.sequenceLength",
        ("maxPositionEmbeddings 512",),
    ),
    "predictions": RuleCase(
        pretrain(maxPredictionsPerSequence=125),
        pretrain(maxPredictionsPerSequence=126),
        f"{P1}.maxPredictionsPerSequence",
        ("at most 125",),
    ),
    "predictions of an evaluation": RuleCase(
        evaluate(sequenceLength=64, maxPredictionsPerSequence=61),
        evaluate(sequenceLength=64, maxPredictionsPerSequence=62),
        "spec.stages[2].evaluate.maxPredictionsPerSequence",
        ("at most 61",),
    ),
    "work for every rank": RuleCase(
        put("workers", value=32),
        put("workers", value=33),
        f"{P1}.globalBatchSize",
        ("got 64", "at least 66", "multiply it by the number of ranks"),
    ),
    "passes": RuleCase(
        pretrain(microBatchSize=64), pretrain(microBatchSize=65), f"{P1}.microBatchSize", ("at most globalBatchSize",)
    ),
    "passes of a size that is found": RuleCase(
        pretrain(microBatchSize="auto"),
        pretrain(microBatchSize="auto", lossNormalization="microBatchMean"),
        f"{P1}.microBatchSize",
        ('got "auto"', "a number with lossNormalization: microBatchMean"),
    ),
    "one length": RuleCase(
        pretrain(length={"epochs": 0.5}),
        pretrain(length={"steps": 10, "epochs": 3}),
        f"{P1}.length",
        ("got steps and epochs",),
    ),
    "some length": RuleCase(pretrain(length={"samples": 1}), pretrain(length={}), f"{P1}.length", ("got nothing",)),
    "one warm-up": RuleCase(
        pretrain(warmup={"proportion": 0}),
        pretrain(warmup={"steps": 10, "proportion": 0.1}),
        f"{P1}.warmup",
        ("got steps and proportion",),
    ),
    "some warm-up": RuleCase(
        pretrain(warmup={"steps": 0}), pretrain(warmup={}), f"{P1}.warmup", ("got nothing", "exactly one of")
    ),
    "warm-up that ends": RuleCase(
        pretrain(warmup={"steps": 99}),
        pretrain(warmup={"steps": 100}),
        f"{P1}.warmup.steps",
        ("less than the stage's 100",),
    ),
    "warm-up that ends before the samples": RuleCase(
        pretrain(warmup={"steps": 2}, length={"samples": 129}),
        pretrain(warmup={"steps": 2}, length={"samples": 128}),
        f"{P1}.warmup.steps",
        ("less than the stage's 2 steps",),
    ),
    "range with samples": RuleCase(
        pretrain(dataRange={"start": 0, "end": 0.5}),
        pretrain(dataRange={"start": 0.5, "end": 0.5}),
        f"{P1}.dataRange",
        ("got 0.5 to 0.5",),
    ),
}

PROFILE_CASES: dict[str, RuleCase] = {
    "steps to trace in order": RuleCase(
        put("profileSteps", value={"first": 3, "last": 3}),
        put("profileSteps", value={"first": 3, "last": 2}),
        "spec.profileSteps.last",
        ("got 2 with first 3",),
    ),
    "few steps to trace": RuleCase(
        put("profileSteps", value={"first": 1, "last": 100}),
        put("profileSteps", value={"first": 1, "last": 101}),
        "spec.profileSteps.last",
        ("100 steps in all at most",),
    ),
    "a stage to trace": RuleCase(
        put("profileSteps", value={"first": 1, "last": 2, "stage": "phase1"}),
        put("profileSteps", value={"first": 1, "last": 2, "stage": "evaluate"}),
        "spec.profileSteps.stage",
        ('got "evaluate"', "phase1"),
    ),
}

CONTROLLER_CASES: dict[str, RuleCase] = {
    "huge pages with memory": RuleCase(
        put("resources", value={"hugepages": {"2Mi": "1Gi"}, "memory": "4Gi"}),
        put("resources", value={"hugepages": {"2Mi": "1Gi"}}),
        "spec.resources.memory",
        ("got nothing", "only together with memory"),
    ),
    "sockets to pin by": RuleCase(
        put("cpu", value={"pinning": "socket", "sockets": 2}),
        put("cpu", value={"pinning": "socket"}),
        "spec.cpu.sockets",
        ("got nothing", "add sockets"),
    ),
    "NUMA nodes to pin by": RuleCase(
        put("cpu", value={"pinning": "numa", "numaNodes": 1}),
        put("cpu", value={"pinning": "numa", "sockets": 2}),
        "spec.cpu.numaNodes",
        ("got nothing", "add numaNodes"),
    ),
    "cores to pin by": RuleCase(
        put("cpu", value={"pinning": "core", "coresPerRank": 8}),
        put("cpu", value={"pinning": "core"}),
        "spec.cpu.coresPerRank",
        ("got nothing", "add coresPerRank"),
    ),
    "predictions of an evaluation with an inherited length": RuleCase(
        evaluate(maxPredictionsPerSequence=125),
        evaluate(maxPredictionsPerSequence=126),
        "spec.stages[2].evaluate.maxPredictionsPerSequence",
        ("at most 125",),
    ),
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
    **STAGE_CASES,
    **PROFILE_CASES,
    **CONTROLLER_CASES,
}
