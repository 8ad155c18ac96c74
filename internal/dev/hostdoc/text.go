package hostdoc

// The parts of the document that are not computed. They are format strings, so %% is a
// percent sign.

const intro = `# What a KVM host delivers

Written by internal/dev/hostdoc from docs/hosts/*.json, which are runs of ` + "`guestprobe doctor --format json`" + ` on the hosts named here. Do
not edit; see the end for how to record and write it again.

KVM hosts differ in how, and whether, a trap of the guest reaches the host. So nothing is assumed: at every start a small guest is run that tries each
trap at both privilege levels, and what the host cannot serve is refused with the reason.
`

const featuresIntro = `## What follows

Asked of the same code that accepts and refuses probes (` + "`HostReport.NoBreakReason` and `NoWatchReason` in kvm/machine" + `).
`

const factsIntro = `## What else was found out, and is asserted

Each line is asserted by a test, with a table of the exact behaviour of each class of hosts where they differ; the suite runs on all of them
(` + "`make test`, `make test-vmx`, `make test-svm`" + `). Hosts on a processor (` + "`kvm_intel` and `kvm_amd`" + `) are held to what the KVM API
document promises.
`

const emulators = `## What the two emulators do that no processor does

* **Bochs 2.7** does not take the interrupts of its own machine while a guest runs that was entered with IF clear, until the guest leaves by itself. A guest that
  only jumps, with interrupts off, therefore stops the whole emulated machine, timers and signals included. The guests of the tests leave now and then: a
  ` + "`pause`" + ` in a loop at CPL0 does it (PAUSE-loop exiting).
* **Bochs 2.7** has a step trap pending when a guest is entered again after an EPT violation: a single step over an instruction that touches a page for the first time is reported once too often,
  before the instruction, for each such page. (An earlier survey took that for a loop without end.)
* **QEMU 7.2 TCG** does not ask for the intercept of #BP when an int3 raises it, and does not watch the addresses that vmrun loads into the debug registers.
* **QEMU 7.2 TCG** with one thread for each CPU can keep a translation of an int3 that the kernel of the emulated machine has just written over (a race between
  translation and code modification): that CPU then traps for ever. KVM patches its static branches with each VM that comes or goes, so this happened every few minutes. The script runs all CPUs on one
  thread, which has no such race.
* **QEMU 7.2 TCG** can deliver an interrupt that vmrun injects twice: its vector stays noted (` + "`exception_index`" + `), and where another thread of QEMU's makes the processor leave its loop before the next exception or
  exit, it is delivered again, at the first instruction of its handler, with interrupts off. A Linux guest whose user code was interrupted dies of that: the second handler takes itself for one that
  interrupted the kernel, and has the gs base of user code. Seen with ` + "`TestFiles`" + ` and ` + "`TestFilesCopied`" + `, where interrupts that an instruction stepped in its place has held off come after it, in user code.
`

const again = `## Record it again

    make test-vmx test-svm     # write build/nested/*/host.json
    scripts/hosts.sh           # doctor here, both records from there, and this page

A test fails when this page is not what the records and the code give.`
