# Everything is built from Go modules that this repository pins: Go, make and git are all it takes.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

# The version above is the stamp; Go's own only fails where git distrusts the owner of the folder.
export GOFLAGS += -buildvcs=false

# A control plane of the user's own (setup-envtest has some) is used as it is; else ours is built.
ifdef KUBEBUILDER_ASSETS
kubectl := $(firstword $(wildcard $(KUBEBUILDER_ASSETS)/kubectl) $(shell command -v kubectl) bin/control-plane/kubectl)
else
KUBEBUILDER_ASSETS := $(CURDIR)/bin/control-plane
control-plane := bin/control-plane/etcd bin/control-plane/kube-apiserver
kubectl := $(or $(shell command -v kubectl),bin/control-plane/kubectl)
endif
export KUBEBUILDER_ASSETS

# What makes a node, and the CNI plugin under test, beside the control plane; and what lets pods and Services be reached.
node := $(addprefix bin/node/,kube-controller-manager kube-scheduler kubelet containerd containerd-shim-runc-v2 ctr \
	whereabouts whereabouts-controlloop)
network := $(addprefix bin/node/,kube-proxy ptp host-local)

# Where goroutines meet. The race detector needs cgo, which Go switches off where it finds no C compiler.
raced := ./audit/... ./backends/... ./cluster/... ./finalizers/... ./ipam/... ./webhooks/...
cgo = $(filter 1,$(shell go env CGO_ENABLED))

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## compile bin/oakum
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/oakum .

.PHONY: generate
generate: bin/controller-gen bin/helm-docs ## derive deep copies, manifests, RBAC, docs/cli.md and the chart's README
	bin/controller-gen object paths=./apis/... paths=./backends/...
	bin/controller-gen crd paths=./apis/ipam/... output:crd:dir=config/crd
	bin/controller-gen webhook paths=./webhooks output:webhook:dir=config/webhook
	bin/controller-gen rbac:roleName=oakum paths=./cli output:rbac:dir=config/rbac
	bin/controller-gen rbac:roleName=oakum-selfsigned paths=./certs output:rbac:dir=config/selfsigned
	go test ./cli -run '^TestDocs$$' -update
	bin/helm-docs --chart-search-root charts --log-level warning

.PHONY: verify
verify: bin/golangci-lint bin/kustomize bin/helm ## check generated files, modules, format and code; only regenerates
	@before=$$(mktemp -d); trap 'rm -rf "$$before"' EXIT; cp -R apis backends charts config docs "$$before"; \
	$(MAKE) --no-print-directory generate; \
	for folder in apis backends charts config docs; do git --no-pager diff --no-index "$$before/$$folder" $$folder || stale=yes; done; \
	if [[ $${stale-} ]]; then echo 'The files above were stale. They are fresh now: commit them.' >&2; exit 1; fi
	bin/kustomize build config/default > /dev/null
	bin/kustomize build config/selfsigned > /dev/null
	@whole=$$(mktemp -d -p config); trap 'rm -rf "$$whole"' EXIT; echo 'bin/kustomize build, with every component'; \
	printf 'resources: [../default]\ncomponents: [../pods, ../whereabouts, ../coil, ../calico]\n' > "$$whole/kustomization.yaml"; \
	bin/kustomize build "$$whole" > /dev/null
	bin/helm lint --strict --quiet charts/oakum
	@for module in . tools/*/; do echo "go -C $$module mod tidy -diff"; go -C $$module mod tidy -diff; done
	"$$(go env GOROOT)/bin/gofmt" -d .
	go vet -tags e2e ./...
	bin/golangci-lint run

.PHONY: lint
lint: bin/golangci-lint ## run the linters alone
	bin/golangci-lint run

.PHONY: test
test: $(control-plane) bin/kustomize bin/helm bin/promtool bin/kwok ## run every test; concurrent packages once more with the race detector
	go test -timeout 20m ./...
	$(if $(cgo),go test -race $(raced),@echo 'no C compiler: skipping the race detector')

# For how long each fuzz target is tried.
FUZZTIME ?= 60s

.PHONY: fuzz
fuzz: ## try inputs that no test has, on each fuzz target for FUZZTIME, a processor each
	@go test -list '^Fuzz' ./... | awk '/^Fuzz/ {all[n++] = $$1} /^ok/ {for (i = 0; i < n; i++) print $$2, all[i]; n = 0}' | \
	xargs -P "$$(nproc)" -L 1 bash -c 'go test "$$0" -run "^$$" -fuzz "^$$1$$" -fuzztime $(FUZZTIME) -parallel 1 || exit 255'

.PHONY: e2e
e2e: build $(control-plane) $(node) $(network) $(kubectl) bin/helm bin/certmanager ## test on a real node: needs root, runc, nftables and iproute2
	PATH="$$PATH:$(abspath $(dir $(kubectl)))" go test -tags e2e -p 1 -count 1 -timeout 30m ./test/e2e/...

.PHONY: scale
scale: build $(control-plane) bin/kwok ## let 300 nodes and 3,000 pods come and go for 10 minutes
	go test ./test/scale -count 1 -timeout 60m -v -nodes 300 -pods 3000 -rate 20 -span 10m -plot $(CURDIR)/docs/scale

.PHONY: bench
bench: build $(control-plane) bin/benchstat ## measure what Oakum costs on a real control plane
	go run ./test/bench -out bin/bench.txt -growth bin/growth.svg
	bin/benchstat -col /side bin/bench.txt
	go test -run '^$$' -bench Run -benchmem ./audit
	go test -run '^$$' -bench Handler ./webhooks

.PHONY: run demo cluster
run: ## start a control plane with Oakum on this machine, until Ctrl-C
demo: ## watch Oakum at work on this machine
cluster: $(node) ## start a whole cluster of one node, until Ctrl-C: needs root, and runc
run demo cluster: build $(control-plane) $(kubectl)
	PATH="$$PATH:$(abspath $(dir $(kubectl)))" go run ./test/local $@

.PHONY: clean distclean
clean: ## remove what is built, but for the control plane and the node
	mkdir -p bin && find bin -mindepth 1 -maxdepth 1 ! -name control-plane ! -name node -exec rm -rf {} +
distclean: ## remove all that is built
	rm -rf bin

# Each binary below is as new as the module that pins its version.

bin/control-plane/etcd: tools/etcd/go.mod tools/etcd/go.sum
	@$(call compile,etcd,go.etcd.io/etcd/server/v3,1 minute)

# Kubernetes takes its version from the linker, or calls itself v0.0.0.
bin/control-plane/kube%: ldflags = -X k8s.io/component-base/version.gitVersion=$$version
bin/control-plane/kube-apiserver: tools/kubernetes/go.mod tools/kubernetes/go.sum
	@$(call compile,kubernetes,k8s.io/kubernetes/cmd/kube-apiserver,4 minutes)
bin/control-plane/kubectl: tools/kubernetes/go.mod tools/kubernetes/go.sum
	@$(call compile,kubernetes,k8s.io/kubernetes/cmd/kubectl,2 minutes)

# The rest of a one-node cluster, and the plugins whose records Oakum guards.
bin/node/kube%: ldflags = -X k8s.io/component-base/version.gitVersion=$$version
bin/node/kube-controller-manager: tools/kubernetes/go.mod tools/kubernetes/go.sum
	@$(call compile,kubernetes,k8s.io/kubernetes/cmd/kube-controller-manager,2 minutes)
bin/node/kube-scheduler: tools/kubernetes/go.mod tools/kubernetes/go.sum
	@$(call compile,kubernetes,k8s.io/kubernetes/cmd/kube-scheduler,20 seconds)
bin/node/kubelet: tools/kubernetes/go.mod tools/kubernetes/go.sum
	@$(call compile,kubernetes,k8s.io/kubernetes/cmd/kubelet,1 minute)
bin/node/kube-proxy: tools/kubernetes/go.mod tools/kubernetes/go.sum
	@$(call compile,kubernetes,k8s.io/kubernetes/cmd/kube-proxy,20 seconds)
bin/node/containerd: tools/containerd/go.mod tools/containerd/go.sum
	@$(call compile,containerd,github.com/containerd/containerd/v2/cmd/containerd,1 minute)
bin/node/containerd-shim-runc-v2: tools/containerd/go.mod tools/containerd/go.sum
	@$(call compile,containerd,github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2,5 seconds)
bin/node/ctr: tools/containerd/go.mod tools/containerd/go.sum
	@$(call compile,containerd,github.com/containerd/containerd/v2/cmd/ctr,10 seconds)
bin/node/whereabouts: tools/whereabouts/go.mod tools/whereabouts/go.sum
	@$(call compile,whereabouts,github.com/k8snetworkplumbingwg/whereabouts/cmd,1 minute)
bin/node/whereabouts-controlloop: tools/whereabouts/go.mod tools/whereabouts/go.sum
	@$(call compile,whereabouts,github.com/k8snetworkplumbingwg/whereabouts/cmd/controlloop,10 seconds)
bin/node/ptp: tools/cni/go.mod tools/cni/go.sum
	@$(call compile,cni,github.com/containernetworking/plugins/plugins/main/ptp,10 seconds)
bin/node/host-local: tools/cni/go.mod tools/cni/go.sum
	@$(call compile,cni,github.com/containernetworking/plugins/plugins/ipam/host-local,5 seconds)

bin/controller-gen: tools/generate/go.mod tools/generate/go.sum
	@$(call compile,generate,sigs.k8s.io/controller-tools/cmd/controller-gen,1 minute)
bin/kustomize: tools/generate/go.mod tools/generate/go.sum
	@$(call compile,generate,sigs.k8s.io/kustomize/kustomize/v5,1 minute)
bin/helm-docs: tools/helmdocs/go.mod tools/helmdocs/go.sum
	@$(call compile,helmdocs,github.com/norwoodj/helm-docs/cmd/helm-docs,30 seconds)
bin/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	@$(call compile,lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,2 minutes)
bin/promtool: tools/prometheus/go.mod tools/prometheus/go.sum
	@$(call compile,prometheus,github.com/prometheus/prometheus/cmd/promtool,2 minutes)
bin/benchstat: tools/bench/go.mod tools/bench/go.sum
	@$(call compile,bench,golang.org/x/perf/cmd/benchstat,10 seconds)
bin/kwok: tools/kwok/go.mod tools/kwok/go.sum
	@$(call compile,kwok,sigs.k8s.io/kwok/cmd/kwok,1 minute)
bin/helm: tools/helm/go.mod tools/helm/go.sum
	@$(call compile,helm,helm.sh/helm/v4/cmd/helm,2 minutes)
bin/certmanager: tools/certmanager/main.go tools/certmanager/go.mod tools/certmanager/go.sum
	@$(call compile,certmanager,github.com/oakum-dev/oakum/tools/certmanager,2 minutes)

# compile,MODULE,PACKAGE,TIME builds the target from a package that tools/MODULE pins. Go's line for everything that
# is fetched or compiled becomes one line in 250. The tags leave out what containerd would need C headers for, and the
# clouds in which Prometheus would look for targets.
define compile
version=$$(go -C tools/$(1) list -find -f '{{.Module.Version}}' $(2)); \
	echo "building $(@F)$${version:+ $$version} from source, once: about $(3) on 2 cores"; \
	CGO_ENABLED=0 go -C tools/$(1) build -v -trimpath -tags no_btrfs,no_devmapper,no_zfs,remove_all_sd \
	-ldflags "-s -w $(ldflags)" -o '$(CURDIR)/$@' $(2) 2>&1 | \
	awk 'NF > 1 && !/^go: downloading / {print; next} ++n % 250 == 0 {print "  " n " modules and packages"; fflush()}'
endef
