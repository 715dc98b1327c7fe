{{/* The name of all objects. */}}
{{- define "bert-operator.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{/* The operator's account. */}}
{{- define "bert-operator.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "bert-operator.fullname" .) -}}
{{- end }}

{{/* The PriorityClass of the operator's pod. */}}
{{- define "bert-operator.priorityClass" -}}
{{- .Values.priorityClassName | default (include "bert-operator.fullname" .) -}}
{{- end }}

{{/* What pods are chosen by; must never change. */}}
{{- define "bert-operator.selector" -}}
app.kubernetes.io/name: bert-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Of every object. */}}
{{- define "bert-operator.labels" -}}
{{ include "bert-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Repository with digest or tag. */}}
{{- define "bert-operator.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* settings.yaml. As JSON, which is YAML too: Helm's toYaml would write 1000000 as 1e+06, which is no user id. */}}
{{- define "bert-operator.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- if .Values.profiles }}{{ $_ := set $settings "profiles" .Values.profiles }}{{ end -}}
{{- if .Values.defaultProfile }}{{ $_ := set $settings "defaultProfile" .Values.defaultProfile }}{{ end -}}
{{- /* What bounds nothing is left out, as in the settings of deploy/kustomize. */}}
{{- range list "limits" "profileNamespaces" }}
{{- if not (get $settings .) }}{{ $_ := unset $settings . }}{{ end }}
{{- end }}
{{- $settings | toPrettyJson -}}
{{- end }}

{{/* A file of the chart. Most are links into deploy/kustomize, which a copy of this folder alone lacks. */}}
{{- define "bert-operator.file" -}}
{{- .root.Files.Get .file | required (printf "%s is missing, which is a link into deploy/kustomize: install a packaged chart, or from a whole checkout" .file) -}}
{{- end }}
