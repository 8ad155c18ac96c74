package hostdoc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/kvm/host"
)

// Record is the content of a file docs/hosts/NAME.json, written by scripts/hosts.sh: the
// output of `guestprobe doctor --format json` on a host, and a description of the
// host.
type Record struct {
	Name     string      `json:"-"`        // of the file: module, or module-emulator
	Date     string      `json:"date"`     // of the run, such as 2006-01-02, in UTC
	Kernel   string      `json:"kernel"`   // release of the host's kernel
	Module   string      `json:"module"`   // kvm_intel, kvm_amd or another module
	Emulator string      `json:"emulator"` // name and version; empty on real hardware
	Doctor   host.Report `json:"doctor"`
}

// parse parses a record. Unknown or missing fields are errors: the record then
// belongs to another version of doctor and must be recorded
// again.
func parse(name string, b []byte) (Record, error) {
	fail := func(err error) (Record, error) { return Record{}, fmt.Errorf("host record %s: %w", name, err) }
	r := Record{Name: name}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return fail(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fail(errors.New("more than one value"))
	}
	if _, err := time.Parse(time.DateOnly, r.Date); err != nil {
		return fail(err)
	}
	if r.Kernel == "" || r.Module == "" {
		return fail(errors.New("kernel or module is missing"))
	}
	if !strings.HasPrefix(name, r.Module) || (r.Emulator == "") != (name == r.Module) {
		return fail(fmt.Errorf("it is of module %s under emulator %q", r.Module, r.Emulator))
	}
	if !r.Doctor.KVM.Usable {
		return fail(fmt.Errorf("KVM was not usable: %s", r.Doctor.KVM.Reason))
	}
	for cpl, t := range map[int]host.TrapReport{0: r.Doctor.Traps.CPL0, 3: r.Doctor.Traps.CPL3} {
		if t.Int3 == "" || t.Step == "" || t.HWBreak == "" || t.Watch == "" {
			return fail(fmt.Errorf("calibration of CPL%d is not complete: %+v", cpl, t))
		}
	}
	return r, nil
}

// Load reads the records of all hosts from the folder docs/hosts, in the order of
// the columns.
func Load(dir fs.FS) ([]Record, error) {
	var all []Record
	for _, name := range hosts {
		b, err := fs.ReadFile(dir, name+".json")
		if err != nil {
			return nil, fmt.Errorf("host record %s: %w", name, err)
		}
		r, err := parse(name, b)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// hosts are the columns of the document.
var hosts = []string{"kvm_pvm", "kvm_intel-bochs", "kvm_amd-qemu"}
