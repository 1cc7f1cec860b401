#!/usr/bin/env bash
# gpuledger on a cluster of kind, from nothing: `make kind-demo`. Needs Docker, kind, kubectl and helm.
# Every step can be repeated. KIND_CLUSTER names another cluster of kind, which is made if it is not there.
set -euo pipefail
cd "$(dirname "$0")/../.."

cluster="${KIND_CLUSTER:-gpuledger}"
context="kind-$cluster"
namespace=gpuledger-system
version="$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' operator/gpuledger/__init__.py)"
image="gpuledger:$version"

missing=()
for program in docker kind kubectl helm; do
  command -v "$program" > /dev/null || missing+=("$program")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "error: not on the PATH: ${missing[*]}. Without Docker, \`make demo\` shows the same on this machine." >&2
  exit 1
fi
if ! docker version > /dev/null 2>&1; then
  echo "error: docker does not reach its daemon; \`docker version\` says why." >&2
  exit 1
fi

step() { printf '\n==> %s\n' "$*"; }
show() {
  printf '\n$ kubectl %s\n' "$*"
  kubectl --context "$context" "$@"
}

# Wait until a command, which prints a number, prints at least this one.
wait_for() { # NUMBER WHAT COMMAND...
  local wanted="$1" what="$2" deadline=$((SECONDS + 180)) found
  shift 2
  until found="$("$@")" && [ "$found" -ge "$wanted" ]; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "error: after 3 minutes there are ${found:-no} $what, not $wanted. kubectl gpuledger doctor says more." >&2
      exit 1
    fi
    sleep 1
  done
}
cards() { kubectl --context "$context" get gpuallocations --no-headers 2> /dev/null | grep -c Ready || true; }
bound() {
  kubectl --context "$context" get pods --field-selector spec.nodeName!= --no-headers 2> /dev/null | wc -l
}

step "a cluster of kind, $cluster"
if ! kind get clusters 2> /dev/null | grep -qx "$cluster"; then
  kind create cluster --name "$cluster" --config examples/kind/cluster.yaml
fi

step "the image, $image"
docker build -f manifests/Dockerfile --build-arg HAMI_CORE=without -t "$image" .
kind load docker-image "$image" --name "$cluster"

step "helm: operator, kube-scheduler and agents as pods; each node pretends to have eight cards"
helm upgrade --install gpuledger manifests/chart --kube-context "$context" --namespace "$namespace" \
  --create-namespace --values manifests/chart/presets/kind.yaml > /dev/null
for what in deployment/gpuledger daemonset/gpuledger-agent; do
  kubectl --context "$context" rollout status "$what" --namespace "$namespace" --timeout=5m
done
wait_for 16 "cards in the ledger" cards

step "pods that share cards, and one that waits, as it should"
kubectl --context "$context" apply -f examples/
wait_for 6 "pods with a node" bound
show get pods -o wide
show get gpuallocations --sort-by=.spec.nodeName
show get pod too-large -o 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}{"\n"}'
if command -v kubectl-gpuledger > /dev/null; then
  printf '\n$ kubectl gpuledger top\n'
  kubectl gpuledger top --context "$context"
fi

printf '\nIt stays. To remove all of it: kind delete cluster --name %s\n' "$cluster"
