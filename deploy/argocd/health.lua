-- What Argo CD makes of a BertPretrainJob: resource.customizations.health.bert-operator.dev_BertPretrainJob.
-- As of Kubernetes' own Jobs: a job that runs is Progressing, and Healthy once it has succeeded.
local health = {status = "Progressing", message = "waiting for the operator"}
local status = obj.status
if status == nil or status.phase == nil or status.observedGeneration ~= obj.metadata.generation then
  return health
end
health.message = status.message or status.phase
if status.phase == "Failed" or status.phase == "Invalid" then
  health.status = "Degraded"
elseif status.phase == "Succeeded" then
  health.status = "Healthy"
elseif status.phase == "Stopped" then
  health.status = "Suspended"
end
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Blocked" and condition.status == "True" and health.status == "Progressing" then
    health.message = condition.message
  end
end
return health
