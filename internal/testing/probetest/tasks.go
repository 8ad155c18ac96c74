package probetest

import (
	"encoding/binary"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// gsProfile is the profile of guests with FakeOptions.GS. The comm is too far from the
// numbers to be read with them.
var gsProfile = guest.Profile{GS: true, CPUOff: 0x10, TaskOff: 0x18, StateOff: 0, PIDOff: 4, TGIDOff: 8, CommOff: 0x90, Dead: taskDead}

const (
	taskBase = gsEnd - 0x100_0000
	taskSize = 0x100
	maxTasks = 64

	// taskDead is the state of a task that never runs again.
	taskDead = 0x80
)

// addTasks gives the guest memory for each vCPU and for tasks. vCPU i runs task
// i at first.
func (f *Fake) addTasks() {
	f.mem.add(&region{base: taskBase, data: make([]byte, maxTasks*taskSize), write: true})
	for i := range f.cpus {
		b := make([]byte, guest.PageSize)
		binary.LittleEndian.PutUint32(b[gsProfile.CPUOff:], uint32(i))
		f.mem.add(&region{base: f.gs(i), data: b, write: true})
		f.Run(i, i)
	}
}

// gs is the GS base of a vCPU's kernel.
func (f *Fake) gs(cpu int) guest.GVA { return gsBase + guest.GVA(cpu)*2*guest.PageSize }

// KernelGS implements probe.PerCPU.
func (f *Fake) KernelGS(cpu int, _ probe.State) guest.GVA {
	if f.mem.find(f.gs(cpu)) == nil {
		return 0
	}
	return f.gs(cpu)
}

// Run has vCPU cpu run task i from now on, of a guest with FakeOptions.GS.
func (f *Fake) Run(cpu, i int) {
	f.put(f.gs(cpu)+guest.GVA(gsProfile.TaskOff), binary.LittleEndian.AppendUint64(nil, uint64(taskBase+guest.GVA(i)*taskSize)))
}

// setTask sets the data of task i, in a guest with FakeOptions.GS.
func (f *Fake) setTask(i int, pid, tgid, state uint32, comm string) {
	b := make([]byte, taskSize)
	binary.LittleEndian.PutUint32(b[gsProfile.StateOff:], state)
	binary.LittleEndian.PutUint32(b[gsProfile.PIDOff:], pid)
	binary.LittleEndian.PutUint32(b[gsProfile.TGIDOff:], tgid)
	copy(b[gsProfile.CommOff:][:guest.ProfileCommSize], comm)
	f.put(taskBase+guest.GVA(i)*taskSize, b)
}

// put writes to memory that is there.
func (f *Fake) put(addr guest.GVA, b []byte) {
	if err := f.mem.write(addr, b, mode{}); err != nil {
		panic("BUG: " + err.Error())
	}
}
