#!/bin/sh
# Ray's head, the application, and its dashboard for Grafana, in one container. Settings: PROFILE, PIPELINES, and those
# of deploy/serving/settings.py that come from the environment.
set -eu
grafana="${RAY_METRICS_OUTPUT_ROOT:?where Ray writes its configuration for Grafana}/grafana"

rm -rf "$grafana"
ray start --head --dashboard-host=0.0.0.0 --metrics-export-port=8080 --disable-usage-stats
# Ray writes its part of Grafana's configuration into an empty folder; ours goes beside it, afterwards.
until [ -f "$grafana/provisioning/datasources/default.yml" ]; do sleep 1; done
python -m deploy.grafana "$grafana"

serve start --http-host 0.0.0.0
exec serve run --address auto deploy.app:build "profile=${PROFILE:-laptop}" "pipelines=${PIPELINES:-1}"
