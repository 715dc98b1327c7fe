"""Jobs from Python, for notebooks and scripts: in a cluster what ``kubectl bert`` does, and the same on this machine.

``Client`` speaks to the cluster through kubectl, so contexts, credentials and proxies are those of the command line.
``LocalClient`` runs ``bert-operator local``. The standard library is all that is imported::

    from bert_operator.client import Client, LocalClient

    client = LocalClient()               # or Client(namespace="team")
    job = client.submit("job.yaml")
    for line in client.follow(job.name):
        print(line)
    rows = client.metrics(job.name)      # pandas.DataFrame(rows) is a table

``make_function_manifest`` makes a job of either of a Python function.

Errors are those of ``bert_operator.plugin.errors``: NoSuchObject, ApiRefused, NeverReached, TimeIsUp, all of them
OperatorError.
"""

from __future__ import annotations

from bert_operator.client.cluster_client import Client
from bert_operator.client.functions import make_function_manifest
from bert_operator.client.local_client import LocalClient
from bert_operator.plugin.errors import ApiRefused, NeverReached, NoSuchObject, TimeIsUp
from bert_operator.plugin.event import Event
from bert_operator.plugin.job import Job, Stage
from bert_operator.plugin.presets import make_manifest
from bert_operator.plugin.views.cost_view import Cost

__all__ = [
    "ApiRefused",
    "Client",
    "Cost",
    "Event",
    "Job",
    "LocalClient",
    "NeverReached",
    "NoSuchObject",
    "Stage",
    "TimeIsUp",
    "make_function_manifest",
    "make_manifest",
]
