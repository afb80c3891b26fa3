{{- define "kong-quota.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "kong-quota.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "kong-quota.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kong-quota.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "kong-quota.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "kong-quota.selector" -}}
app.kubernetes.io/name: {{ include "kong-quota.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of the pods that have the plugin: ours, or those of Kong's own chart. */}}
{{- define "kong-quota.pods" -}}
{{- if ne .Values.mode "overlay" -}}
{{ include "kong-quota.selector" . }}
app.kubernetes.io/component: kong
{{- else if .Values.overlay.podLabels -}}
{{ toYaml .Values.overlay.podLabels }}
{{- else -}}
app.kubernetes.io/instance: {{ .Values.overlay.release }}
app.kubernetes.io/component: app
{{- end -}}
{{- end -}}

{{- define "kong-quota.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kong-quota.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An image, by its digest if it has one. Arguments: image, default tag. */}}
{{- define "kong-quota.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default (index . 1) $image.tag }}
{{- end -}}
{{- end -}}

{{- define "kong-quota.redis" -}}
{{- if .Values.trial.enabled -}}
{{- if .Values.redis.address -}}
{{- fail "redis.address and trial.enabled exclude each other" -}}
{{- end -}}
{{- if or .Values.redis.cluster .Values.redis.sentinel.master -}}
{{- fail "trial.enabled: the trial Redis is one server, without redis.cluster and redis.sentinel" -}}
{{- end -}}
{{ include "kong-quota.fullname" . }}-redis:6379
{{- else -}}
{{- $address := required "redis.address must be set, host:port of your Redis, or trial.enabled for a small one in the cluster" .Values.redis.address -}}
{{- if and .Values.redis.cluster .Values.redis.sentinel.master -}}
{{- fail "redis.cluster and redis.sentinel.master exclude each other" -}}
{{- end -}}
{{- if and (contains "," $address) (not .Values.redis.cluster) (not .Values.redis.sentinel.master) -}}
{{- fail "redis.address: several are for redis.cluster or redis.sentinel.master" -}}
{{- end -}}
{{- if and .Values.redis.cluster .Values.redis.database -}}
{{- fail "redis.database: a Redis Cluster has database 0 only" -}}
{{- end -}}
{{- with .Values.redis.sentinel -}}
{{- if and (not .master) (or .username .password .existingSecret) -}}
{{- fail "redis.sentinel: set master, the name of what the Sentinels watch" -}}
{{- end -}}
{{- end -}}
{{ $address }}
{{- end -}}
{{- end -}}

{{/*
The Secret with a password, "" where there is none. Arguments: root, what has the
password (redis or redis.sentinel in the values), its name, its key in the Secret that
is made of the values.
*/}}
{{- define "kong-quota.secret" -}}
{{- $root := index . 0 }}{{ $of := index . 1 }}{{ $name := index . 2 -}}
{{- if and $of.password $of.existingSecret -}}
{{- fail (printf "%s.password and %s.existingSecret exclude each other" $name $name) -}}
{{- end -}}
{{- if $of.password -}}
name: {{ include "kong-quota.fullname" $root }}-redis-password
key: {{ index . 3 }}
{{- else if $of.existingSecret -}}
name: {{ $of.existingSecret }}
key: {{ $of.existingSecretKey }}
{{- end -}}
{{- end -}}

{{- define "kong-quota.redisSecret" -}}
{{- include "kong-quota.secret" (list . .Values.redis "redis" "password") -}}
{{- end -}}

{{- define "kong-quota.sentinelSecret" -}}
{{- include "kong-quota.secret" (list . .Values.redis.sentinel "redis.sentinel" "sentinel-password") -}}
{{- end -}}

{{/*
Changes when a password in the values does, so that the pods roll. Those who may look
at pods see it, so it is made by scrypt (derivePassword), which is slow to guess by.
*/}}
{{- define "kong-quota.passwordsSum" -}}
{{- if or .Values.redis.password .Values.redis.sentinel.password -}}
{{- derivePassword 1 "maximum" (list .Values.redis.password .Values.redis.sentinel.password | toJson) .Release.Name .Release.Namespace | sha256sum -}}
{{- else -}}
none
{{- end -}}
{{- end -}}

{{/*
The settings of the plugin server. nginx strips the environment of what Kong starts,
so they are in a file. The password is in a file of its own, from its Secret.
*/}}
{{- define "kong-quota.env" -}}
QUOTA_REDIS_ADDRESS={{ include "kong-quota.redis" . | quote }}
{{- with .Values.redis.username }}
QUOTA_REDIS_USERNAME={{ . | quote }}
{{- end }}
{{- if include "kong-quota.redisSecret" . }}
QUOTA_REDIS_PASSWORD_FILE=/etc/kong-quota/secrets/redis-password
{{- end }}
{{- if .Values.redis.cluster }}
QUOTA_REDIS_CLUSTER="true"
{{- end }}
{{- with .Values.redis.sentinel.master }}
QUOTA_REDIS_SENTINEL_MASTER={{ . | quote }}
{{- end }}
{{- with .Values.redis.sentinel.username }}
QUOTA_REDIS_SENTINEL_USERNAME={{ . | quote }}
{{- end }}
{{- if include "kong-quota.sentinelSecret" . }}
QUOTA_REDIS_SENTINEL_PASSWORD_FILE=/etc/kong-quota/secrets/sentinel-password
{{- end }}
{{- with .Values.redis.database }}
QUOTA_REDIS_DATABASE={{ . | quote }}
{{- end }}
{{- with .Values.redis.tls }}
{{- if .enabled }}
QUOTA_REDIS_TLS="true"
{{- with .serverName }}
QUOTA_REDIS_TLS_SERVER_NAME={{ . | quote }}
{{- end }}
{{- if .existingSecret }}
QUOTA_REDIS_TLS_CA_FILE=/etc/kong-quota/tls/ca.crt
{{- if .clientCertificate }}
QUOTA_REDIS_TLS_CERT_FILE=/etc/kong-quota/tls/tls.crt
QUOTA_REDIS_TLS_KEY_FILE=/etc/kong-quota/tls/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.metrics.enabled }}
QUOTA_LISTEN_ADDRESS="0.0.0.0:{{ .Values.metrics.port }}"
{{- end }}
{{- range $name, $value := .Values.settings }}
{{- if or (hasPrefix "redis_" $name) (eq "listen_address" $name) }}
{{- fail (printf "settings.%s: set redis.* or metrics.* instead" $name) }}
{{- end }}
QUOTA_{{ $name | upper }}={{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{/* The volumes of the plugin, and where they are. */}}
{{- define "kong-quota.volumes" -}}
- name: quota
  emptyDir: {}
- name: quota-env
  configMap:
    name: {{ include "kong-quota.fullname" . }}-env
{{- $redis := include "kong-quota.redisSecret" . | fromYaml }}
{{- $sentinel := include "kong-quota.sentinelSecret" . | fromYaml }}
{{- if or $redis $sentinel }}
- name: quota-secrets
  projected:
    sources:
    {{- with $redis }}
    - secret: { name: {{ .name }}, items: [ { key: {{ .key }}, path: redis-password } ] }
    {{- end }}
    {{- with $sentinel }}
    - secret: { name: {{ .name }}, items: [ { key: {{ .key }}, path: sentinel-password } ] }
    {{- end }}
{{- end }}
{{- if and .Values.redis.tls.enabled .Values.redis.tls.existingSecret }}
- name: quota-tls
  secret:
    secretName: {{ .Values.redis.tls.existingSecret }}
{{- end }}
{{- end -}}

{{- define "kong-quota.mounts" -}}
- name: quota
  mountPath: /opt/kong-quota
- name: quota-env
  mountPath: /etc/kong-quota/env
  readOnly: true
{{- if or (include "kong-quota.redisSecret" .) (include "kong-quota.sentinelSecret" .) }}
- name: quota-secrets
  mountPath: /etc/kong-quota/secrets
  readOnly: true
{{- end }}
{{- if and .Values.redis.tls.enabled .Values.redis.tls.existingSecret }}
- name: quota-tls
  mountPath: /etc/kong-quota/tls
  readOnly: true
{{- end }}
{{- end -}}

{{/* Puts the plugin's binary, and what Kong asks of it, where Kong finds them. */}}
{{- define "kong-quota.install" -}}
- name: install-quota
  image: {{ include "kong-quota.image" (list .Values.image .Chart.AppVersion) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [-install, /opt/kong-quota, -kong-prefix, /opt/kong-quota/run]
  securityContext: {{- include "kong-quota.securityContext" . | nindent 4 }}
  resources:
    requests: { cpu: 10m, memory: 16Mi }
    limits: { memory: 64Mi }
  volumeMounts:
  - name: quota
    mountPath: /opt/kong-quota
{{- end -}}

{{- define "kong-quota.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Kong's settings for the plugin. */}}
{{- define "kong-quota.kongEnv" -}}
plugins: {{ printf "%s,quota" .Values.kong.plugins }}
pluginserver_names: quota
pluginserver_quota_socket: /opt/kong-quota/run/quota.socket
{{- if eq .Values.mode "sidecar" }}
pluginserver_quota_query_cmd: /bin/cat /opt/kong-quota/dump.json
{{- else }}
pluginserver_quota_query_cmd: /opt/kong-quota/quota -kong-prefix /opt/kong-quota/run -dump
pluginserver_quota_start_cmd: /opt/kong-quota/quota -kong-prefix /opt/kong-quota/run -env-file /etc/kong-quota/env/quota.env
{{- end }}
{{- end -}}
