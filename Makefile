# kong-quota. `make` lists the targets.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# A checkout may belong to somebody else than who builds it, as in CI: git then
# refuses to tell the commit, and without this go refuses to build.
ifneq ($(shell git log -1 >/dev/null 2>&1 || echo refused),)
export GOFLAGS := $(GOFLAGS) -buildvcs=false
endif
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME ?= 10s
# Go modules of their own, so that what they need never enters the product's.
MODULES := bench build/test charts/test
# Where build/tools.sh puts what Debian's packages bring to a user without root.
# Last, so that the machine's own tools count.
export PATH := $(PATH):$(CURDIR)/.tools/bin
# Without a home directory to write to, go and staticcheck have no caches.
writable = $(shell d="$(1)"; [ -n "$$d" ] && mkdir -p "$$d" 2>/dev/null && [ -w "$$d" ] && echo yes)
ifeq ($(call writable,$${XDG_CACHE_HOME:-$${HOME:+$$HOME/.cache}}),)
export XDG_CACHE_HOME := $(CURDIR)/.tools/cache
endif
ifeq ($(call writable,$$(go env GOMODCACHE 2>/dev/null)),)
export GOPATH := $(CURDIR)/.tools/go
export GOMODCACHE := $(GOPATH)/pkg/mod
endif

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 16

.PHONY: go
go:
	@command -v go >/dev/null || { echo "make: Go is not on PATH; it comes from https://go.dev/dl (go.mod names the version)" >&2; exit 1; }

.PHONY: build
build: go ## build bin/quota (the plugin server), bin/quotactl, bin/devkong and bin/demo
	@echo "building bin/"
	@CGO_ENABLED=0 go build -trimpath -o bin/quota .
	@CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/...

.PHONY: run
run: build redis ## serve kong.yml on this machine until Ctrl-C (ARGS="-proxy 127.0.0.1:8000" for a port)
	@bin/demo -serve $(ARGS)

.PHONY: demo
demo: build redis ## serve kong.yml, send requests until quotas are hit, print the answers
	@bin/demo $(ARGS)

# The demo goes on without Redis, in memory, and says so.
.PHONY: redis
redis:
	@build/tools.sh redis-server || true

.PHONY: tools
tools:
	@build/tools.sh redis-server redis-cli luacheck

.PHONY: lint
lint: go tools ## check formatting, vet, staticcheck, luacheck, and shellcheck if there is one
	@echo "gofmt"; unformatted=$$(find . -path ./.tools -prune -o -name '*.go' -print0 | xargs -0 gofmt -l); [ -z "$$unformatted" ] || { echo "not formatted: $$unformatted"; exit 1; }
	@echo "go vet"; go vet ./... && for module in $(MODULES); do (cd $$module && go vet ./...); done
	@echo "staticcheck"; go run $(STATICCHECK) ./...
	@echo "luacheck"; luacheck --quiet --no-color lua
	@! command -v shellcheck >/dev/null || { echo "shellcheck"; shellcheck build/*.sh .ci/run; }

.PHONY: test
test: go tools lint ## install what the tests need, lint, and run all tests
	@# The race detector needs a C compiler.
	@if build/tools.sh gcc; then export CGO_ENABLED=1 race=-race; else export race=; echo "no C compiler: the tests run without the race detector"; fi; \
	echo "go test $$race (the first run compiles for some minutes)"; \
	go test $$race -timeout 10m ./... && for module in $(filter-out bench,$(MODULES)); do (cd $$module && go test -timeout 10m ./...) || exit 1; done || { echo "make test: FAILED, see the packages with FAIL above"; exit 1; }; \
	echo "make test: lint and all packages passed$${race:+, with the race detector}"

# KONG_BIN, else the command kong, else Docker where an engine answers.
.PHONY: e2e-kong
e2e-kong: go tools ## play the table of requests to a real Kong (KONG_BIN, the command kong, or KONG_IMAGE in Docker)
	@if [ -z "$${KONG_BIN:=$$(command -v kong)}" ] && docker info >/dev/null 2>&1; then KONG_BIN=$(CURDIR)/build/kong-in-docker.sh; fi; \
	command -v "$${KONG_BIN:-kong}" >/dev/null || { echo "make e2e-kong: no Kong: set KONG_BIN, put kong on PATH, or start Docker" >&2; exit 1; }; \
	KONG_BIN="$$(command -v "$$KONG_BIN")" go test -count=1 -v -run TestStoriesOfKong ./e2e

# The API server is compiled from its Go module, which takes minutes the first time.
KUBERNETES = $(shell cd charts/cluster && go list -m -f '{{.Version}}' k8s.io/kubernetes)
.PHONY: e2e-kubernetes
e2e-kubernetes: go ## install the chart into a real Kubernetes API server (KONG_CRDS for the examples' own definitions)
	@echo "compiling Kubernetes $(KUBERNETES), and installing the chart into it"
	@cd charts/cluster && go vet . && go test -count=1 -timeout 20m -ldflags "-X k8s.io/component-base/version.gitVersion=$(KUBERNETES)" . 2>&1 | grep -v '^[IWE][0-9]\{4\} '

.PHONY: fuzz
fuzz: go tools ## run every fuzz target for FUZZTIME (10s)
	@for package in $$(go list ./...); do \
	  targets=$$(go test -list '^Fuzz' "$$package"); \
	  for target in $$(sed -n '/^Fuzz/p' <<<"$$targets"); do \
	    echo "$$package $$target"; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package"; \
	  done; \
	done

.PHONY: bench
bench: go redis ## measure beside peers; writes bench/RESULTS.md and plots (ARGS="-only limiter" for a part; KONG_PROXY or KONG_BIN for a real Kong)
	@cd bench && go run . $(ARGS)

.PHONY: generate
generate: go ## write the generated files anew (docs/CONFIGURATION.md, the chart's schema and README)
	@go generate ./...

.PHONY: clean
clean: ## remove what was built and unpacked
	@[ ! -d .tools ] || chmod -R u+w .tools # go writes its modules read-only
	@rm -rf bin .tools
