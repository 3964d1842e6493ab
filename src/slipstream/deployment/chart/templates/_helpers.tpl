{{- define "slipstream.labels" -}}
app.kubernetes.io/name: slipstream
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "slipstream.metadata" -}}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "slipstream.labels" .root | nindent 2 }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $reasons := list }}
{{- range .because }}
{{- with index $.root.Values.because . }}{{ $reasons = append $reasons . }}{{ end }}
{{- end }}
{{- if or $reasons .annotations }}
annotations:
  {{- range .because }}
  {{- $key := . }}
  {{- with index $.root.Values.because . }}
  slipstream/{{ $key }}: {{ . | quote }}
  {{- end }}
  {{- end }}
  {{- with .annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "slipstream.plan" -}}
{{ .Release.Name }}-plan-{{ required "values.plan is empty: slipstream deploy kubernetes PLAN writes it" .Values.plan | sha256sum | trunc 8 }}
{{- end }}

{{- define "slipstream.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "slipstream.claim" -}}
{{ .Values.weights.claim | default (printf "%s-weights" .Release.Name) }}
{{- end }}

{{/* Seconds for the cluster to stop sending requests to a pod that is to end. */}}
{{- define "slipstream.unlisting" -}}10{{- end }}

{{/* Drain, the engine's grace of 30 s, and 15 s for the supervisor's last records. */}}
{{- define "slipstream.grace" -}}
{{ add (include "slipstream.unlisting" .) .Values.drainSeconds 45 }}
{{- end }}

{{- define "slipstream.confined" -}}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 2000
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "slipstream.folders" -}}
- name: HF_HUB_CACHE
  value: {{ .Values.weights.path }}/hub
# The lock of the weights lies beside them.
- name: SLIPSTREAM_CACHE
  value: {{ .Values.weights.path }}/slipstream
{{- end }}

{{/* The pod of one machine; `role` is alone, leader or worker. */}}
{{- define "slipstream.pod" -}}
{{- $values := .root.Values }}
{{- $ranked := ne .role "alone" }}
{{- $plan := ternary "/run/slipstream/plan.json" "/etc/slipstream/plan.json" $ranked }}
metadata:
  labels:
    {{- include "slipstream.labels" .root | nindent 4 }}
    slipstream/role: {{ .role }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ .root.Release.Name }}
  automountServiceAccountToken: false
  # Variables such as SLIPSTREAM_PORT, after the Service, are none of ours.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "slipstream.grace" .root }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: {{ ternary "DoNotSchedule" "ScheduleAnyway" $ranked }}
      labelSelector:
        matchLabels:
          {{- include "slipstream.labels" .root | nindent 10 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 2000
    runAsGroup: 0
    fsGroup: 2000
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  initContainers:
    # Fetches what is missing, compares all with its lock, and fails if a file is not what it was.
    - name: weights
      image: {{ include "slipstream.image" .root }}
      imagePullPolicy: IfNotPresent
      args:
        - deploy
        - prepare
        - /etc/slipstream/plan.json
        {{- if $ranked }}
        - --rank
        - $(LWS_WORKER_INDEX)
        - --head
        - $(LWS_LEADER_ADDRESS)
        - --interface
        - {{ $values.fabricInterface }}
        - --secret
        - /run/secrets/group/secret
        - --out
        - {{ $plan }}
        {{- end }}
      env:
        {{- include "slipstream.folders" .root | nindent 8 }}
        - name: HF_HUB_OFFLINE
          value: {{ ternary "0" "1" (and $values.weights.fetch (eq $values.weights.source "hub")) | quote }}
        {{- if $values.weights.tokenSecret }}
        - name: HF_TOKEN_PATH
          value: /run/secrets/hub/token
        {{- end }}
      resources:
        requests:
          cpu: "1"
          memory: 1Gi
        limits:
          memory: 4Gi
      securityContext:
        {{- include "slipstream.confined" .root | nindent 8 }}
      volumeMounts:
        - name: plan
          mountPath: /etc/slipstream
          readOnly: true
        - name: weights
          mountPath: {{ $values.weights.path }}
        - name: state
          mountPath: /var/lib/slipstream
        - name: scratch
          mountPath: /tmp
        {{- if $ranked }}
        - name: run
          mountPath: /run/slipstream
        - name: group-secret
          mountPath: /run/secrets/group
          readOnly: true
        {{- end }}
        {{- if $values.weights.tokenSecret }}
        - name: hub-token
          mountPath: /run/secrets/hub
          readOnly: true
        {{- end }}
  containers:
    - name: engine
      image: {{ include "slipstream.image" .root }}
      imagePullPolicy: IfNotPresent
      # Without --hold: what the supervisor gives up ends, and the cluster waits longer before each start.
      args:
        - serve
        - {{ $plan }}
        - --bind
        - 0.0.0.0
        - --port
        - {{ $values.port | quote }}
        - --drain
        - {{ $values.drainSeconds | quote }}
        {{- if $values.allow }}
        - --allow
        {{- toYaml $values.allow | nindent 8 }}
        {{- end }}
      env:
        {{- include "slipstream.folders" .root | nindent 8 }}
        - name: HF_HUB_OFFLINE
          value: "1"
        - name: SLIPSTREAM_KEYS
          value: /run/secrets/slipstream/keys.json
      {{- if ne .role "worker" }}
      ports:
        - name: http
          containerPort: {{ $values.port }}
      # The supervisor replaces an engine that hangs within 60 s or so, and a start takes as long as the
      # first one did: liveness waits for that, or it would kill a pod that is recovering.
      startupProbe:
        httpGet: {path: /livez, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: {{ div (add $values.startSeconds 9) 10 }}
      livenessProbe:
        httpGet: {path: /livez, port: http}
        periodSeconds: 30
        timeoutSeconds: 10
        failureThreshold: {{ max 4 (div (add $values.startSeconds 29) 30) }}
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      {{- end }}
      lifecycle:
        preStop:
          exec:
            {{- if eq .role "worker" }}
            # The leader drains meanwhile, and needs its workers for it.
            command: [sleep, {{ add (include "slipstream.unlisting" .root) $values.drainSeconds | quote }}]
            {{- else }}
            command: [sleep, {{ include "slipstream.unlisting" .root | quote }}]
            {{- end }}
      terminationMessagePolicy: FallbackToLogsOnError
      resources:
        requests:
          cpu: {{ $values.resources.cpu | quote }}
          memory: {{ $values.resources.memory }}
          ephemeral-storage: 8Gi
        # No limit of memory: it does not see what an accelerator takes of a shared memory (vllm#56824).
        # No limit of processors: a throttled scheduler delays every token.
        limits:
          ephemeral-storage: 32Gi
          {{- if $values.resources.gpus }}
          {{ $values.resources.gpuResource }}: {{ $values.resources.gpus | quote }}
          {{- end }}
      securityContext:
        {{- include "slipstream.confined" .root | nindent 8 }}
      volumeMounts:
        - name: plan
          mountPath: /etc/slipstream
          readOnly: true
        {{- if $ranked }}
        - name: run
          mountPath: /run/slipstream
          readOnly: true
        {{- end }}
        - name: weights
          mountPath: {{ $values.weights.path }}
          readOnly: true
        # The folder and not a file of it, or a change of the keys would not be seen.
        - name: keys
          mountPath: /run/secrets/slipstream
          readOnly: true
        - name: state
          mountPath: /var/lib/slipstream
        - name: compiled
          mountPath: /var/cache/slipstream
        - name: scratch
          mountPath: /tmp
        - name: shared-memory
          mountPath: /dev/shm
  volumes:
    - name: plan
      configMap:
        name: {{ include "slipstream.plan" .root }}
    - name: weights
      persistentVolumeClaim:
        claimName: {{ include "slipstream.claim" .root }}
    - name: keys
      secret:
        secretName: {{ $values.keys.secret | default (printf "%s-keys" .root.Release.Name) }}
        items:
          - key: keys.json
            path: keys.json
    {{- with $values.weights.tokenSecret }}
    - name: hub-token
      secret:
        secretName: {{ . }}
        items:
          - key: token
            path: token
    {{- end }}
    {{- if $ranked }}
    - name: run
      emptyDir: {sizeLimit: 16Mi}
    - name: group-secret
      secret:
        secretName: {{ $values.keys.groupSecret | default (printf "%s-group" .root.Release.Name) }}
        items:
          - key: secret
            path: secret
    {{- end }}
    - name: state
      emptyDir: {sizeLimit: 4Gi}
    # Compiled kernels are code: every pod makes its own.
    - name: compiled
      emptyDir: {sizeLimit: 16Gi}
    - name: scratch
      emptyDir: {sizeLimit: 8Gi}
    - name: shared-memory
      emptyDir: {medium: Memory, sizeLimit: {{ $values.resources.sharedMemory }}}
{{- end }}
