# kong-quota. `make` lists the targets.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# A checkout may belong to somebody else than who builds it, as in CI: git then
# refuses to tell the commit, and without this go refuses to build.
export GOFLAGS += -buildvcs=false
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME ?= 10s
# Where build/tools.sh puts what Debian's packages bring to a user without root.
export PATH := $(CURDIR)/.tools/bin:$(PATH)
# Without a home directory go has no cache of its own.
ifeq ($(HOME),)
export GOCACHE ?= $(CURDIR)/.tools/go-cache
export GOPATH ?= $(CURDIR)/.tools/go
endif

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

.PHONY: build
build: ## build bin/quota (the plugin server), bin/devkong and bin/demo
	@command -v go >/dev/null || { echo "Go is not on PATH: https://go.dev/dl"; exit 1; }
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
lint: tools ## check formatting, vet, staticcheck, luacheck
	@echo "gofmt"; unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "not formatted: $$unformatted"; exit 1; }
	@echo "go vet"; go vet ./...
	@echo "staticcheck"; go run $(STATICCHECK) ./...
	@echo "luacheck"; luacheck --quiet lua

.PHONY: test
test: tools lint ## install what the tests need, lint, and run all tests
	@# The race detector needs a C compiler, which needs root to install.
	@if build/tools.sh gcc; then export CGO_ENABLED=1 race=-race; else export race=; echo "no C compiler: the tests run without the race detector"; fi; \
	echo "go test $$race (the first run compiles for some minutes)"; \
	go test $$race -timeout 10m ./...

.PHONY: fuzz
fuzz: tools ## run every fuzz target for FUZZTIME (10s)
	@go list ./... | while read -r package; do \
	  { go test -list '^Fuzz' "$$package" | grep ^Fuzz || true; } | while read -r target; do \
	    echo "$$package $$target"; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package"; \
	  done; \
	done

.PHONY: generate
generate: ## write the generated files anew (docs/CONFIGURATION.md)
	@go generate ./...

.PHONY: clean
clean: ## remove what was built and unpacked
	@rm -rf bin .tools
