# guestprobe: kprobes for KVM guests, from the outside.
GO ?= go
GOTESTFLAGS ?=
export CGO_ENABLED ?= 0

.PHONY: build install deb rpm package-test systemd-test demo demo-linux test test-full test-slow check cover race loc test-insn test-vmx test-svm test-linux test-bpftrace test-bpftrace-tools test-bpftrace-suite test-verifier bench bench-linux bench-compare bench-docs soak defects torture torture-linux tracers requests rounds cycles storms saves saves-linux gdb-testsuite fleet fuzz guest generate pictures clean help
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

VERSION ?=
# Packages give their version, and have no debug information. Other builds have the version that a package of the commit has; in a
# tree without git, the programs say what Go knows of it.
version = $(or $(VERSION),$(shell scripts/version.sh 2>/dev/null))
ldflags = $(if $(version),-ldflags '$(if $(VERSION),-s -w )-X github.com/guestprobe/guestprobe/probe/remote/internal/version.version=$(version) -X github.com/guestprobe/guestprobe/probe/remote/internal/version.commit=$(shell git rev-parse HEAD 2>/dev/null)')
# The tests that make test runs at a part of their size: those that ask kvmtest.Full.
full = ^(TestEveryOffset|TestManyVCPUs|TestWorkloadProbedAndUnprobed|TestWorkloadWithReturns|TestWatchEmulated|TestReturnStorm|TestReturnStageStorm|TestOptimizeStorm|TestTransparency|TestRun|TestSamples|TestInGuestRows|TestEventsClose|TestShort|TestInstall|TestGeneratedClient|TestKilled)$$
DESTDIR ?=
PREFIX ?= /usr/local

# Where programs go, and which.
BIN ?= bin
PROGRAMS ?= ./cmd/...

build: ## build guestprobe, guestprobed, guestprobe-fleetd and gpdev in bin/
	$(GO) build -trimpath -buildvcs=$(if $(VERSION),false,auto) $(ldflags) -o $(BIN)/ $(PROGRAMS)

install: build ## install programs, units, manual pages, completions and documents below DESTDIR and PREFIX
	DESTDIR=$(DESTDIR) PREFIX=$(PREFIX) scripts/install.sh

deb: ## make a package for Debian, in build/package
	scripts/package.sh deb

rpm: ## make a package for Fedora and others with rpm
	scripts/package.sh rpm

package-test: ## both packages: the same bytes twice, installed and removed in a new Debian root (root)
	scripts/package-test.sh

systemd-test: ## the package's units under a real systemd, in a container (root, /dev/kvm)
	scripts/systemd-test.sh

demo: build ## boot the built-in guest, probe it, show a live trace
	bin/guestprobe demo

demo-linux: build ## boot a Linux kernel, probe it, show processes and latencies
	scripts/demo-linux.sh

# The packages whose tests take longest come first, so that the last one does not run alone. ./... has all others.
PACKAGES = ./kvm/machine ./internal/server/http ./internal/cli ./internal/dev/bench ./internal/server/web ./internal/testing/doctest ./...

# Programs of tests are linked without debug information (-w): nobody looks at them with a debugger, and linking takes half as long.
test: ## every test: units, conformance on the fake and under /dev/kvm, end to end
	$(GO) vet ./...
	$(GO) test -vet=off -ldflags=-w -count=1 -timeout 20m $(GOTESTFLAGS) $(PACKAGES)

test-full: ## the tests that take samples or are short in make test, at full size
	GUESTPROBE_FULL=1 $(GO) test -vet=off -ldflags=-w -count=1 -timeout 30m $(GOTESTFLAGS) -run '$(full)' ./kvm/machine ./kvm/foreign ./internal/dev/bench ./internal/server/http ./internal/dev/soak ./internal/testing/doctest

# -short makes loads smaller, as on emulated hosts; nothing is left out.
test-slow: ## the same with guests that run ten times slower: no test may depend on a host's speed
	$(GO) test -tags slowguest -short -vet=off -ldflags=-w -count=1 -timeout 60m $(GOTESTFLAGS) $(PACKAGES)

race: ## the same under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race -p 1 -count=1 -timeout 60m $(GOTESTFLAGS) ./...

cover: ## how much of each package the tests run; less than 70 % needs a reason in scripts/cover.reasons
	scripts/cover.sh

loc: ## lines of Go: product, tools, test helpers and tests
	scripts/loc.sh

check: ## formatting, vet, staticcheck, module files, tests
	scripts/check.sh

test-insn: ## our decoder against objdump on 10 million real instructions
	scripts/insn-corpus.sh

test-vmx: ## the suite on kvm_intel, in a machine emulated by Bochs
	scripts/nested.sh vmx

test-svm: ## the suite on kvm_amd, in a machine emulated by QEMU
	scripts/nested.sh svm

test-linux: ## Linux guests, on kvm_amd and kvm_intel in emulated machines
	scripts/nested.sh svm linux
	scripts/nested.sh svm linux-guests
	scripts/nested.sh vmx linux
	scripts/nested.sh vmx linux-guests
	scripts/nested.sh vmx ./internal/testing/linuxtest -test.run TestFiles -test.short

test-bpftrace: ## compare with the real bpftrace, on the scripts that it has not run yet
	scripts/bpftrace.sh

test-bpftrace-tools: ## bpftrace's own tools on Linux guests of three kernels, beside what these count themselves: BPFTRACE may name a checkout
	GUESTPROBE_BPFTRACE='$(abspath $(BPFTRACE))' GUESTPROBE_KERNELS='linux-image-cloud-amd64 trixie/linux-image-cloud-amd64 sid/linux-image-cloud-amd64' scripts/nested.sh svm bttools

test-bpftrace-suite: ## bpftrace's own tests on our compiler of scripts: BPFTRACE names a checkout, and nothing is fetched
	scripts/bpftrace-suite.sh "$(BPFTRACE)"

test-verifier: ## compare with Linux's verifier, on its own test cases
	scripts/verifier-suite.sh

bench: build ## what a hit costs here, beside what else is on this machine
	bin/gpdev bench $(BENCHFLAGS)

bench-linux: ## what probes of a Linux guest cost, in instructions, and attaching all functions
	scripts/bench-linux.sh

pictures: ## take the pictures of the page in docs/see.md
	GUESTPROBE_PAGE_PICTURES=$(CURDIR)/build/page $(GO) test -count=1 -run '^(TestProbesView|TestCodeView|TestScriptsView)$$' ./internal/server/web
	cp build/page/probes.png docs/page-probes.png
	cp build/page/code.png docs/page-code.png
	cp build/page/charts.png docs/page-charts.png

bench-compare: ## compare benchmarks with those of a revision, by turns: BASE=HEAD~1 [PKGS="./probe ..."] [BENCH=PATTERN] [ROUNDS=5]
	scripts/bench-compare.sh "$(BASE)"

bench-docs: ## measure everything and write docs/benchmarks.md, and the costs in docs/fleet.md
	scripts/bench-docs.sh

soak: build ## probes at random under load, with clients and daemons killed
	bin/gpdev soak $(SOAKFLAGS)

defects: ## deliberate defects of the engine: made-up guests must find each
	scripts/defects.sh

torture: build ## made-up guests, probed, beside native runs of the same code
	bin/gpdev torture $(TORTUREFLAGS)

torture-linux: ## every function of a Linux guest that may be probed, in turns, under load; the kernel's own suites (hours)
	GUESTPROBE_NESTED_SECONDS=$${GUESTPROBE_NESTED_SECONDS:-20000} scripts/nested.sh svm torture

tracers: ## the guest's own kprobes, ftrace, BPF and livepatches, switched at random beside our probes, on four kernels (hours)
	GUESTPROBE_NESTED_CPUS=1 GUESTPROBE_NESTED_SECONDS=$${GUESTPROBE_NESTED_SECONDS:-20000} GUESTPROBE_KERNELS='linux-image-cloud-amd64 trixie/linux-image-cloud-amd64 trixie/linux-image-rt-amd64 sid/linux-image-cloud-amd64' \
		scripts/nested.sh svm ./internal/testing/linuxtest -test.run 'TestTracers$$|TestTracersModule$$|TestSuiteLivepatch$$' -tracers.turns $${TURNS:-300} -tracers.seed $${SEED:-1}

requests: ## 120,000 requests at random to a daemon, of which none may be an internal error
	GUESTPROBE_REQUESTS=$${GUESTPROBE_REQUESTS:-120000} $(GO) test -count=1 -timeout 60m -run 'TestRequests$$' ./internal/server/http

rounds: ## 1,000 rounds of attach, trace and detach at 1, 2, 4 and 8 vCPUs: no event vanishes
	GUESTPROBE_ROUNDS=$${GUESTPROBE_ROUNDS:-1000} $(GO) test -count=1 -timeout 10h -v -run 'TestEventsClose$$' ./internal/server/http

cycles: ## 100,000 cycles of attach and detach in constant memory
	GUESTPROBE_CYCLES=$${GUESTPROBE_CYCLES:-100000} $(GO) test -count=1 -timeout 10h -v -run 'TestCycles$$' ./kvm/machine

saves: ## 10,000 saves at random moments under probes of all kinds: each restored guest computes what an unprobed one does
	GUESTPROBE_SAVES=$${GUESTPROBE_SAVES:-10000} $(GO) test -count=1 -timeout 10h -v -run 'TestSaves$$' ./kvm/machine

saves-linux: ## 300 saves of a Linux guest on the SVM host, and 50 on the VMX host; takes hours
	GUESTPROBE_NESTED_CPUS=1 GUESTPROBE_NESTED_SECONDS=$${GUESTPROBE_NESTED_SECONDS:-36000} scripts/nested.sh svm ./internal/testing/linuxtest -test.run 'TestLinuxSaves$$' -saves $${GUESTPROBE_SAVES:-300} -seed $${GUESTPROBE_SAVES_SEED:-1}
	GUESTPROBE_NESTED_SECONDS=$${GUESTPROBE_NESTED_SECONDS:-36000} scripts/nested.sh vmx ./internal/testing/linuxtest -test.run 'TestLinuxSaves$$' -saves $${GUESTPROBE_SAVES:-50} -seed $${GUESTPROBE_SAVES_SEED:-1}

storms: ## 10,000 return probes that come and go with calls under way: final counts close
	GUESTPROBE_DETACHES=$${GUESTPROBE_DETACHES:-10000} $(GO) test -count=1 -timeout 10h -v -run 'TestReturnStageStorm$$' ./kvm/machine

gdb-testsuite: ## cases of GDB's own testsuite, by Debian's source, dejagnu and gdb, against guestprobed
	scripts/gdb-testsuite.sh

fleet: ## 50 daemons and three servers: one ends, one daemon is cut off for 30 s, one is gone; sums close
	GUESTPROBE_FLEET=$${GUESTPROBE_FLEET:-50} $(GO) test -count=1 -timeout 30m -v -run 'TestFleet' ./internal/server/http -fleet-daemons $${GUESTPROBE_FLEET:-50}

fuzz: ## each fuzz target, or those that FUZZ matches, for FUZZTIME (default 20s); keeps new inputs
	scripts/fuzz.sh $(FUZZ)

guest: ## rebuild the built-in guest (needs gcc, binutils and dwarves)
	guest/builtin/build.sh

generate: ## rewrite generated documents and goldens
	@mkdir -p build
	$(GO) test ./internal/cli -run TestDocument -update
	$(GO) run ./cmd/gpdev hosts docs/hosts >build/hosts.md && mv build/hosts.md docs/hosts.md
	$(GO) run ./cmd/gpdev openapi . >build/openapi.yaml && mv build/openapi.yaml docs/openapi.yaml
	$(GO) run ./cmd/gpdev notice . >build/NOTICE && mv build/NOTICE NOTICE

clean: ## remove build results
	rm -rf bin build
