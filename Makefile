# make test    everything that is needed, then all tests against real servers
# make check   gofmt, vet, staticcheck, tidy, shellcheck
# make sandbox the service in gVisor, in which App Engine and Cloud Run run it
# make soak    the long forms of tests: simulated weeks, faults of a path, a stall, a million stored runs
# make bench   figures against peers, in pairs
# make axe     axe-core on every page in a browser; wants npm, which fetches it
# make vuln    known vulnerabilities; its database is on the internet

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GVISOR      = v0.0.0-20260905035102-160fafc42237
AXE         = axe-core@4.14.1
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@latest
SERVERS     = redis-server redis-benchmark memcached pg_ctl shellcheck chromium
PACKAGES    = redis-server redis-tools memcached postgresql libmemcached-tools shellcheck chromium

.PHONY: all build check test sandbox soak bench axe vuln servers

all: check test

build:
	go build -trimpath -ldflags='-s -w' -o bin/nsop .

check: servers
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "gofmt would change: $$files"; exit 1; fi
	go vet ./...
	go mod tidy -diff
	go run $(STATICCHECK) ./...
	shellcheck deploy/gcp.sh deploy/testdata/gcloud

test: servers
	go test -race -timeout 40m ./...
	go test -run StayFast ./handlers

sandbox: servers bin/runsc-$(GVISOR)
	go vet -tags sandbox .
	NSOP_RUNSC=$(CURDIR)/bin/runsc-$(GVISOR) go test -tags sandbox -run Sandbox -timeout 10m -v .

# With cgo it builds, but can't start.
bin/runsc-$(GVISOR):
	CGO_ENABLED=0 GOBIN=$(CURDIR)/bin go install -ldflags='-s -w' gvisor.dev/gvisor/runsc@$(GVISOR)
	mv bin/runsc $@

soak: servers
	NSOP_SOAK=1 go test -count=1 -timeout 3h -v ./bench/detect ./bench/diagnose
	NSOP_SOAK=1 go test -count=1 -timeout 1h -v -run 'Chaos|Flood|Job$$|OpenLoop|Stall' . ./bench/store
	go test -timeout 60m -run '^$$' -bench Million -benchtime 1x -v ./bench/history

bench: servers
	go test -run '^$$' -bench 'Peers|RowAgainst|Start|Catalogue|Pgbench|Memcached' -benchtime 1x -timeout 45m -v . ./bench/store

axe: servers bin/axe.min.js
	NSOP_AXE=$(CURDIR)/bin/axe.min.js go test -count=1 -run TestBrowser -v ./handlers

bin/axe.min.js:
	mkdir -p bin
	cd bin && npm pack --silent $(AXE) && tar -xzf axe-core-*.tgz --strip-components=1 package/axe.min.js && rm axe-core-*.tgz

vuln:
	go run $(GOVULNCHECK) ./...

# A missing server is installed where Debian's packages can be, and named where they can't.
servers:
	@missing=; for s in $(SERVERS); do command -v $$s >/dev/null || missing=1; done; \
	if [ -n "$$missing" ]; then \
		if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null; \
		else echo "install first: $(SERVERS) (Debian: $(PACKAGES))"; exit 1; fi; \
	fi
