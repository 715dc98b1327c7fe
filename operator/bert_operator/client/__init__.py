"""Jobs from Python, for notebooks and scripts: what ``kubectl bert`` does.

``Client`` calls kubectl, so contexts, credentials and proxies are those of the command line. It imports the standard
library alone::

    from bert_operator.client import Client

    client = Client(namespace="team")
    job = client.submit("job.yaml")
    for line in client.follow(job.name):
        print(line)
    rows = client.metrics(job.name)      # pandas.DataFrame(rows) is a table

Errors are those of ``bert_operator.plugin.errors``: NoSuchObject, ApiRefused, Unreachable, WaitTimeout, all of them
OperatorError.
"""

from __future__ import annotations

from bert_operator.client.cluster_client import Client
from bert_operator.plugin.errors import ApiRefused, NoSuchObject, Unreachable, WaitTimeout
from bert_operator.plugin.event import Event
from bert_operator.plugin.job import Job, Stage
from bert_operator.plugin.views.cost_view import Cost

__all__ = [
    "ApiRefused",
    "Client",
    "Cost",
    "Event",
    "Job",
    "NoSuchObject",
    "Stage",
    "Unreachable",
    "WaitTimeout",
]
