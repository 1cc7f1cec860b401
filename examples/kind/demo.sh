#!/usr/bin/env bash
# gpuledger on a cluster of kind, from nothing: `make kind-demo`. Needs Docker, kind, kubectl and helm.
# Every step can be repeated. KIND_CLUSTER names another cluster of kind, which is made if it is not there; KIND_IMAGE
# another node image, for another version of Kubernetes or where kind's own can't be pulled. A cluster that it has made is
# removed at the end; KEEP=1 leaves it.
set -euo pipefail
cd "$(dirname "$0")/../.."

cluster="${KIND_CLUSTER:-gpuledger}"
context="kind-$cluster"
namespace=gpuledger-system
made=
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
# How many of these pods run, or have ended well.
started() { # GET'S ARGUMENTS...
  kubectl --context "$context" get "$@" -o 'jsonpath={range .items[?(@.kind=="Pod")]}{.status.phase}{"\n"}{end}' |
    grep -cE 'Running|Succeeded' || true
}
agents() {
  kubectl --context "$context" get daemonset/gpuledger-agent --namespace "$namespace" \
    -o 'jsonpath={.status.desiredNumberScheduled}'
}

step "a cluster of kind, $cluster"
if ! kind get clusters 2> /dev/null | grep -qx "$cluster"; then
  made=yes
  kind create cluster --name "$cluster" --config examples/kind/cluster.yaml ${KIND_IMAGE:+--image "$KIND_IMAGE"}
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
wait_for $((8 * $(agents))) "Ready cards in the ledger" cards

step "pods that share cards, and one that waits, as it should"
kubectl --context "$context" apply -f examples/
pods="$(kubectl --context "$context" get -f examples/ -o name | grep -c '^pod/')"
wait_for $((pods - 1)) "running pods, all but too-large" started -f examples/
wait_for 2 "running pods of the Job" started pods -l job-name=train
show get pods -o wide
show get gpuallocations --sort-by=.spec.nodeName
show get pod too-large -o 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}{"\n"}'

step "what a container gets, what the operator says, and its view, through kubectl's own doors"
if [ -n "$(kubectl --context "$context" get job train -o 'jsonpath={.status.active}')" ]; then # they sleep for 30 s
  show exec job/train -- sh -c 'env | grep ^GPULEDGER_ | sort'
fi
show logs deployment/gpuledger --namespace "$namespace" --container operator --tail 3
if command -v kubectl-gpuledger > /dev/null; then
  plugin() {
    printf '\n$ kubectl gpuledger %s\n' "$*"
    kubectl gpuledger "$@" --context "$context"
  }
  plugin top
  plugin explain pod/too-large || true # its status says that the pod waits
  plugin history pod/video # by a port-forward to the active operator
fi

if [ -n "$made" ] && [ -z "${KEEP:-}" ]; then
  step "remove the cluster (KEEP=1 leaves it)"
  kind delete cluster --name "$cluster"
else
  printf '\nIt stays. To remove all of it: kind delete cluster --name %s\n' "$cluster"
fi
