package bpf

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/cilium/ebpf/asm"
)

// Helper is the number of a helper function, as Linux numbers them
// (include/uapi/linux/bpf.h, enum bpf_func_id).
type Helper int32

// The supported helpers.
const (
	HelperMapLookup       Helper = 1
	HelperMapUpdate       Helper = 2
	HelperMapDelete       Helper = 3
	HelperProbeRead       Helper = 4 // kernel or user by the sign of the address
	HelperKtimeGetNS      Helper = 5
	HelperTracePrintk     Helper = 6
	HelperGetRandom       Helper = 7
	HelperGetCPU          Helper = 8
	HelperTailCall        Helper = 12
	HelperGetPIDTGID      Helper = 14
	HelperGetUIDGID       Helper = 15
	HelperGetComm         Helper = 16
	HelperPerfEventOutput Helper = 25
	HelperGetStackID      Helper = 27
	HelperGetTask         Helper = 35
	HelperWriteUser       Helper = 36
	HelperUnderCgroup     Helper = 37
	HelperProbeReadStr    Helper = 45
	HelperOverrideReturn  Helper = 58
	HelperGetStack        Helper = 67
	HelperGetCgroupID     Helper = 80
	HelperMapPush         Helper = 87
	HelperMapPop          Helper = 88
	HelperMapPeek         Helper = 89
	HelperSpinLock        Helper = 93
	HelperSpinUnlock      Helper = 94
	HelperStrtol          Helper = 105
	HelperStrtoul         Helper = 106
	HelperReadUser        Helper = 112
	HelperReadKernel      Helper = 113
	HelperReadUserStr     Helper = 114
	HelperReadKernelStr   Helper = 115
	HelperNSPIDTGID       Helper = 120
	HelperKtimeBootNS     Helper = 125
	HelperRingOutput      Helper = 130
	HelperRingReserve     Helper = 131
	HelperRingSubmit      Helper = 132
	HelperRingDiscard     Helper = 133
	HelperRingQuery       Helper = 134
	HelperCopyFromUser    Helper = 148
	HelperSnprintfBTF     Helper = 149
	HelperTaskStorageGet  Helper = 156
	HelperTaskStorageDel  Helper = 157
	HelperGetTaskBTF      Helper = 158
	HelperKtimeCoarseNS   Helper = 160
	HelperForEachElem     Helper = 164
	HelperSnprintf        Helper = 165
	HelperGetFuncIP       Helper = 173
	HelperGetAttachCookie Helper = 174
	HelperTraceVprintk    Helper = 177
	HelperLoop            Helper = 181
	HelperStrncmp         Helper = 182
	HelperGetFuncArg      Helper = 183
	HelperGetFuncRet      Helper = 184
	HelperGetFuncArgCnt   Helper = 185
	HelperLookupPerCPU    Helper = 195
	HelperDynptrFromMem   Helper = 197
	HelperRingReserveDyn  Helper = 198
	HelperRingSubmitDyn   Helper = 199
	HelperRingDiscardDyn  Helper = 200
	HelperDynptrRead      Helper = 201
	HelperDynptrWrite     Helper = 202
	HelperDynptrData      Helper = 203

	// Helpers that Linux does not have.
	HelperWatched  Helper = 1 << 16
	HelperEntryArg Helper = 1<<16 + 1
	HelperGetSpace Helper = 1<<16 + 2
	HelperSetReg   Helper = 1<<16 + 3
	HelperPoke     Helper = 1<<16 + 4
	HelperFileCode Helper = 1<<16 + 5
	HelperStop     Helper = 1<<16 + 6

	// Functions of Linux's kernel (kfuncs), which have no numbers there.
	HelperDynptrSlice  Helper = 1<<16 + 7
	HelperDynptrSliceW Helper = 1<<16 + 8
	HelperDynptrAdjust Helper = 1<<16 + 9
	HelperDynptrIsNull Helper = 1<<16 + 10
	HelperDynptrIsRO   Helper = 1<<16 + 11
	HelperDynptrSize   Helper = 1<<16 + 12
	HelperDynptrClone  Helper = 1<<16 + 13
)

// Place says where a program, or a helper, can run.
type Place uint8

// The places.
const (
	InGuest Place = iota // in the detour, without an exit
	OnHost               // in the interpreter, at an exit
)

// String returns "guest" or "host".
func (p Place) String() string {
	if p == InGuest {
		return "guest"
	}
	return "host"
}

// HelperInfo describes one helper.
type HelperInfo struct {
	ID    Helper
	Name  string // Linux's, without the prefix bpf_
	Place Place  // OnHost: a program that calls it never runs in the guest
	Why   string // why OnHost, or the condition for InGuest

	args     []argKind
	cost     int32 // that each call takes from the budget
	needsCtx bool  // works on probed registers, so not in a raw program
}

// Reads reports whether it reads guest memory: InGuest only with Layout.Fixups.
func (i *HelperInfo) Reads() bool { return i.Why == needsFix }

const (
	needsTask   = "needs a guest profile that says where the current task is"
	needsFix    = "needs a machine that resumes faults at the fixups of the compiled code"
	needsFrames = "needs a guest whose stacks can be walked there"
	needsTypes  = "needs a Linux kernel whose types say where it has the number"
	onlyMap     = "works on a map that only the host has"
	onlyText    = "formats text, which the host does"
	onlyCall    = "calls functions by their address"
	onlyDynptr  = "works on dynptrs"
)

// helpers is the table of all supported helpers.
var helpers = []HelperInfo{
	{ID: HelperMapLookup, Name: "map_lookup_elem", args: []argKind{mapArg, keyArg}},
	{ID: HelperMapUpdate, Name: "map_update_elem", args: []argKind{mapArg, keyArg, valueArg, anyArg}},
	{ID: HelperMapDelete, Name: "map_delete_elem", args: []argKind{mapArg, keyArg}},
	{ID: HelperProbeRead, Name: "probe_read", cost: costRead, args: []argKind{outArg, anyArg, anyArg}, Why: needsFix},
	{ID: HelperKtimeGetNS, Name: "ktime_get_ns"},
	{ID: HelperTracePrintk, Name: "trace_printk", cost: costLine, args: []argKind{inArg, anyArg}, Place: OnHost, Why: "formats text and gives it to the trace log, which the host holds"},
	{ID: HelperGetRandom, Name: "get_prandom_u32"},
	{ID: HelperGetCPU, Name: "get_smp_processor_id"},
	{ID: HelperTailCall, Name: "tail_call", cost: costHash, args: []argKind{anyArg, progsArg, anyArg}, Place: OnHost, Why: onlyMap},
	{ID: HelperGetPIDTGID, Name: "get_current_pid_tgid", Why: needsTask},
	{ID: HelperGetUIDGID, Name: "get_current_uid_gid", cost: costTask, Why: needsTypes},
	{ID: HelperGetComm, Name: "get_current_comm", args: []argKind{outArg, anyArg}, Why: needsTask},
	{ID: HelperPerfEventOutput, Name: "perf_event_output", args: []argKind{anyArg, ringArg, anyArg, inArg, anyArg}},
	{ID: HelperGetStackID, Name: "get_stackid", cost: costStack, args: []argKind{anyArg, stacksArg, anyArg}, Why: needsFrames},
	{ID: HelperGetTask, Name: "get_current_task", Why: needsTask},
	{ID: HelperWriteUser, Name: "probe_write_user", cost: costRead, args: []argKind{anyArg, inArg, anyArg}, Place: OnHost, Why: "writes memory of the guest, of which the engine keeps its probes apart"},
	{ID: HelperUnderCgroup, Name: "current_task_under_cgroup", args: []argKind{cgroupsArg, anyArg}, Place: OnHost, Why: onlyMap},
	{ID: HelperProbeReadStr, Name: "probe_read_str", cost: costRead, args: []argKind{outArg, anyArg, anyArg}, Why: needsFix},
	{ID: HelperOverrideReturn, Name: "override_return", args: []argKind{anyArg, anyArg}, Place: OnHost, Why: "changes where the probed function resumes, which only the engine may", needsCtx: true},
	{ID: HelperGetStack, Name: "get_stack", cost: costStack, args: []argKind{anyArg, outArg, anyArg, anyArg}, Why: needsFrames},
	{ID: HelperGetCgroupID, Name: "get_current_cgroup_id", cost: costTask, Why: needsTypes},
	{ID: HelperMapPush, Name: "map_push_elem", cost: costHash, args: []argKind{queueArg, valueArg, anyArg}, Place: OnHost, Why: onlyMap},
	{ID: HelperMapPop, Name: "map_pop_elem", cost: costHash, args: []argKind{queueArg, valueOutArg}, Place: OnHost, Why: onlyMap},
	{ID: HelperMapPeek, Name: "map_peek_elem", cost: costHash, args: []argKind{queueArg, valueOutArg}, Place: OnHost, Why: onlyMap},
	{ID: HelperSpinLock, Name: "spin_lock", cost: costHash, args: []argKind{lockArg}, Place: OnHost, Why: "waits for other vCPUs"},
	{ID: HelperSpinUnlock, Name: "spin_unlock", args: []argKind{lockArg}, Place: OnHost, Why: "waits for other vCPUs"},
	{ID: HelperStrtol, Name: "strtol", args: []argKind{inArg, anyArg, anyArg, wordArg}, Place: OnHost, Why: "reads texts of any length"},
	{ID: HelperStrtoul, Name: "strtoul", args: []argKind{inArg, anyArg, anyArg, wordArg}, Place: OnHost, Why: "reads texts of any length"},
	{ID: HelperReadUser, Name: "probe_read_user", cost: costRead, args: []argKind{outArg, anyArg, anyArg}, Why: needsFix},
	{ID: HelperReadKernel, Name: "probe_read_kernel", cost: costRead, args: []argKind{outArg, anyArg, anyArg}, Why: needsFix},
	{ID: HelperReadUserStr, Name: "probe_read_user_str", cost: costRead, args: []argKind{outArg, anyArg, anyArg}, Why: needsFix},
	{ID: HelperReadKernelStr, Name: "probe_read_kernel_str", cost: costRead, args: []argKind{outArg, anyArg, anyArg}, Why: needsFix},
	{ID: HelperNSPIDTGID, Name: "get_ns_current_pid_tgid", cost: costTask, args: []argKind{anyArg, anyArg, outArg, anyArg}, Place: OnHost, Why: "follows the kernel's PID namespaces, which the host does"},
	{ID: HelperKtimeBootNS, Name: "ktime_get_boot_ns"},
	{ID: HelperRingOutput, Name: "ringbuf_output", args: []argKind{ringArg, inArg, anyArg, anyArg}},
	{ID: HelperRingReserve, Name: "ringbuf_reserve", args: []argKind{ringArg, anyArg, anyArg}},
	{ID: HelperRingSubmit, Name: "ringbuf_submit", args: []argKind{recordArg, anyArg}},
	{ID: HelperRingDiscard, Name: "ringbuf_discard", args: []argKind{recordArg, anyArg}},
	{ID: HelperRingQuery, Name: "ringbuf_query", args: []argKind{ringArg, anyArg}},
	{ID: HelperCopyFromUser, Name: "copy_from_user", cost: costRead, args: []argKind{outArg, anyArg, anyArg}, Why: needsFix},
	{ID: HelperSnprintfBTF, Name: "snprintf_btf", args: []argKind{outArg, anyArg, inArg, anyArg, anyArg}, Place: OnHost, Why: onlyText},
	{ID: HelperTaskStorageGet, Name: "task_storage_get", cost: costTask, args: []argKind{storageArg, anyArg, orNullArg, anyArg}, Place: OnHost, Why: onlyMap},
	{ID: HelperTaskStorageDel, Name: "task_storage_delete", cost: costTask, args: []argKind{storageArg, anyArg}, Place: OnHost, Why: onlyMap},
	{ID: HelperGetTaskBTF, Name: "get_current_task_btf", Why: needsTask},
	{ID: HelperKtimeCoarseNS, Name: "ktime_get_coarse_ns"},
	{ID: HelperForEachElem, Name: "for_each_map_elem", args: []argKind{elemsArg, funcArg, anyArg, anyArg}, Place: OnHost, Why: onlyCall},
	{ID: HelperSnprintf, Name: "snprintf", cost: costLine, args: []argKind{outArg, anyArg, anyArg, inArg, anyArg}, Place: OnHost, Why: onlyText},
	{ID: HelperGetFuncIP, Name: "get_func_ip", args: []argKind{anyArg}, needsCtx: true},
	{ID: HelperGetAttachCookie, Name: "get_attach_cookie", args: []argKind{anyArg}, needsCtx: true},
	{ID: HelperTraceVprintk, Name: "trace_vprintk", cost: costLine, args: []argKind{inArg, anyArg, inArg, anyArg}, Place: OnHost, Why: onlyText},
	{ID: HelperLoop, Name: "loop", args: []argKind{anyArg, funcArg, anyArg, anyArg}, Place: OnHost, Why: onlyCall},
	{ID: HelperStrncmp, Name: "strncmp", args: []argKind{inArg, anyArg, anyArg}, Place: OnHost, Why: "compares texts of any length"},
	{ID: HelperGetFuncArg, Name: "get_func_arg", args: []argKind{anyArg, anyArg, wordArg}, needsCtx: true},
	{ID: HelperGetFuncRet, Name: "get_func_ret", args: []argKind{anyArg, wordArg}, needsCtx: true},
	{ID: HelperGetFuncArgCnt, Name: "get_func_arg_cnt", args: []argKind{anyArg}, needsCtx: true},
	{ID: HelperLookupPerCPU, Name: "map_lookup_percpu_elem", args: []argKind{elemsArg, keyArg, anyArg}},
	{ID: HelperDynptrFromMem, Name: "dynptr_from_mem", args: []argKind{outArg, anyArg, anyArg, dynptrArg}, Place: OnHost, Why: onlyDynptr},
	{ID: HelperRingReserveDyn, Name: "ringbuf_reserve_dynptr", args: []argKind{ringArg, anyArg, anyArg, dynptrArg}, Place: OnHost, Why: onlyDynptr},
	{ID: HelperRingSubmitDyn, Name: "ringbuf_submit_dynptr", args: []argKind{dynptrArg, anyArg}, Place: OnHost, Why: onlyDynptr},
	{ID: HelperRingDiscardDyn, Name: "ringbuf_discard_dynptr", args: []argKind{dynptrArg, anyArg}, Place: OnHost, Why: onlyDynptr},
	{ID: HelperDynptrRead, Name: "dynptr_read", args: []argKind{outArg, anyArg, dynptrArg, anyArg, anyArg}, Place: OnHost, Why: onlyDynptr},
	{ID: HelperDynptrWrite, Name: "dynptr_write", args: []argKind{dynptrArg, anyArg, inArg, anyArg, anyArg}, Place: OnHost, Why: onlyDynptr},
	{ID: HelperDynptrData, Name: "dynptr_data", args: []argKind{dynptrArg, anyArg, anyArg}, Place: OnHost, Why: onlyDynptr},
	{ID: HelperWatched, Name: "watched", args: []argKind{anyArg}, Place: OnHost, Why: "knows the access of a watch, which the processor tells the host", needsCtx: true},
	{ID: HelperEntryArg, Name: "entry_arg", args: []argKind{anyArg, wordArg}, Place: OnHost, Why: "knows arguments that were on the stack at the entry, which the host keeps", needsCtx: true},
	{ID: HelperGetSpace, Name: "get_space", Place: OnHost, Why: "takes CR3 of the host, since a guest may not be able to read it without an exit"},
	{ID: HelperSetReg, Name: "set_reg", args: []argKind{anyArg, anyArg, anyArg}, Place: OnHost, Why: "changes the registers that the guest resumes with, which only the engine may", needsCtx: true},
	{ID: HelperPoke, Name: "poke", cost: costRead, args: []argKind{anyArg, inArg, anyArg}, Place: OnHost, Why: "writes memory of the guest, of which the engine keeps its probes apart"},
	{ID: HelperFileCode, Name: "file_code", cost: costTask, args: []argKind{anyArg}, Place: OnHost, Why: "finds by the guest's page tables which file code is of"},
	{ID: HelperStop, Name: "stop", args: []argKind{anyArg, anyArg}, Place: OnHost, Why: "has the vCPU leave the guest", needsCtx: true},
	{ID: HelperDynptrSlice, Name: "dynptr_slice", args: []argKind{dynptrArg, anyArg, anyArg, anyArg}, Place: OnHost, Why: onlyDynptr},
	{ID: HelperDynptrSliceW, Name: "dynptr_slice_rdwr", args: []argKind{dynptrArg, anyArg, anyArg, anyArg}, Place: OnHost, Why: onlyDynptr},
	{ID: HelperDynptrAdjust, Name: "dynptr_adjust", args: []argKind{dynptrArg, anyArg, anyArg}, Place: OnHost, Why: onlyDynptr},
	{ID: HelperDynptrIsNull, Name: "dynptr_is_null", args: []argKind{dynptrArg}, Place: OnHost, Why: onlyDynptr},
	{ID: HelperDynptrIsRO, Name: "dynptr_is_rdonly", args: []argKind{dynptrArg}, Place: OnHost, Why: onlyDynptr},
	{ID: HelperDynptrSize, Name: "dynptr_size", args: []argKind{dynptrArg}, Place: OnHost, Why: onlyDynptr},
	{ID: HelperDynptrClone, Name: "dynptr_clone", args: []argKind{dynptrArg, dynptrArg}, Place: OnHost, Why: onlyDynptr},
}

var helperByID = func() map[Helper]*HelperInfo {
	m := make(map[Helper]*HelperInfo, len(helpers))
	for i := range helpers {
		m[helpers[i].ID] = &helpers[i]
	}
	return m
}()

// ChangesGuest reports whether the helper changes the guest: its registers, where it
// resumes, or its memory.
func (h Helper) ChangesGuest() bool {
	return h == HelperOverrideReturn || h == HelperSetReg || h == HelperPoke || h == HelperWriteUser
}

// IsClock reports whether the helper returns the time. Time does not pass for a
// stopped guest, so all monotonic clocks are the same one.
func (h Helper) IsClock() bool {
	return h == HelperKtimeGetNS || h == HelperKtimeBootNS || h == HelperKtimeCoarseNS
}

// Helpers returns the table of helpers in the order of their numbers.
func Helpers() []HelperInfo { return append([]HelperInfo(nil), helpers...) }

// String returns the helper's name without bpf_, also for those that only Linux has,
// which get the number appended.
func (h Helper) String() string {
	if i := helperByID[h]; i != nil {
		return i.Name
	}
	name, ok := strings.CutPrefix(asm.BuiltinFunc(h).String(), "Fn")
	if !ok {
		return fmt.Sprint(int32(h))
	}
	var b strings.Builder
	for i, r := range name { // the library's names are in CamelCase
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return fmt.Sprintf("%s (%d)", &b, int32(h))
}
