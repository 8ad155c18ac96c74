package event

import "syscall"

// Code names one way in which a definition can be wrong. The names are the kernel's
// (kernel/trace/trace_probe.h, Linux 6.12); codes that the kernel does not have are
// marked as ours. The strings are part of the API: they are added to, never changed.
type Code string

// Errors in the head and the place of a definition.
const (
	CodeBadCommand      Code = "BAD_COMMAND"      // ours: the kernel says EINVAL without an error_log entry
	CodeNoPlace         Code = "NO_PLACE"         // ours: likewise
	CodeFilePlace       Code = "FILE_PLACE"       // ours: likewise; PATH:PLACE of an unknown file
	CodeCommandTooLong  Code = "COMMAND_TOO_LONG" // ours: likewise
	CodeBadCharacter    Code = "BAD_CHARACTER"    // ours: control character in a token
	CodeBadMaxactType   Code = "BAD_MAXACT_TYPE"
	CodeBadMaxact       Code = "BAD_MAXACT"
	CodeMaxactTooBig    Code = "MAXACT_TOO_BIG"
	CodeBadProbeAddr    Code = "BAD_PROBE_ADDR"
	CodeNonUniqSymbol   Code = "NON_UNIQ_SYMBOL"
	CodeBadRetprobe     Code = "BAD_RETPROBE"
	CodeBadWatch        Code = "BAD_WATCH" // ours: [r|w|rw|x]@PLACE[:LEN]
	CodeBadTPName       Code = "BAD_TP_NAME"
	CodeNoTracepoint    Code = "NO_TRACEPOINT"
	CodeBadAddrSuffix   Code = "BAD_ADDR_SUFFIX"
	CodeNoGroupName     Code = "NO_GROUP_NAME"
	CodeGroupTooLong    Code = "GROUP_TOO_LONG"
	CodeBadGroupName    Code = "BAD_GROUP_NAME"
	CodeNoEventName     Code = "NO_EVENT_NAME"
	CodeEventTooLong    Code = "EVENT_TOO_LONG"
	CodeBadEventName    Code = "BAD_EVENT_NAME"
	CodeEventExist      Code = "EVENT_EXIST"
	CodeDiffProbeType   Code = "DIFF_PROBE_TYPE"
	CodeSameProbe       Code = "SAME_PROBE"
	CodeDiffArgType     Code = "DIFF_ARG_TYPE"
	CodeBadInsnBndry    Code = "BAD_INSN_BNDRY"
	CodeFailRegProbe    Code = "FAIL_REG_PROBE"
	CodeRefcntOpenBrace Code = "REFCNT_OPEN_BRACE"
	CodeRefcntBadSuffix Code = "REFCNT_BAD_SUFFIX"
	CodeBadRefcnt       Code = "BAD_REFCNT"
	CodeNoEvent         Code = "NO_EVENT" // ours: the kernel says ENOENT without an error_log entry
)

// Errors in an argument.
const (
	CodeTooManyArgs    Code = "TOO_MANY_ARGS" // newer than 6.12, which gives E2BIG without an entry
	CodeRetvalOnProbe  Code = "RETVAL_ON_PROBE"
	CodeBadStackNum    Code = "BAD_STACK_NUM"
	CodeBadArgNum      Code = "BAD_ARG_NUM"
	CodeBadVar         Code = "BAD_VAR"
	CodeBadRegName     Code = "BAD_REG_NAME"
	CodeBadMemAddr     Code = "BAD_MEM_ADDR"
	CodeBadImm         Code = "BAD_IMM"
	CodeImmstrNoClose  Code = "IMMSTR_NO_CLOSE"
	CodeFileOnKprobe   Code = "FILE_ON_KPROBE"
	CodeTooManyOps     Code = "TOO_MANY_OPS"
	CodeDerefNeedBrace Code = "DEREF_NEED_BRACE"
	CodeBadDerefOffs   Code = "BAD_DEREF_OFFS"
	CodeDerefOpenBrace Code = "DEREF_OPEN_BRACE"
	CodeDerefSuffix    Code = "DEREF_SUFFIX" // ours: the kernel drops the text after the last brace
	CodeCommCantDeref  Code = "COMM_CANT_DEREF"
	CodeBadFetchArg    Code = "BAD_FETCH_ARG"
	CodeArrayNoClose   Code = "ARRAY_NO_CLOSE"
	CodeBadArraySuffix Code = "BAD_ARRAY_SUFFIX"
	CodeBadArrayNum    Code = "BAD_ARRAY_NUM"
	CodeArrayTooBig    Code = "ARRAY_TOO_BIG"
	CodeBadType        Code = "BAD_TYPE"
	CodeBadString      Code = "BAD_STRING"
	CodeBadSymstring   Code = "BAD_SYMSTRING"
	CodeBadBitfield    Code = "BAD_BITFIELD"
	CodeNeedStringType Code = "NEED_STRING_TYPE"
	CodeArgNameTooLong Code = "ARG_NAME_TOO_LONG"
	CodeNoArgName      Code = "NO_ARG_NAME"
	CodeBadArgName     Code = "BAD_ARG_NAME"
	CodeUsedArgName    Code = "USED_ARG_NAME"
	CodeArgTooLong     Code = "ARG_TOO_LONG"
	CodeNoArgBody      Code = "NO_ARG_BODY"
	CodeNosupBTFArg    Code = "NOSUP_BTFARG"
	CodeNoBTFArg       Code = "NO_BTFARG"
	CodeNoBTFEntry     Code = "NO_BTF_ENTRY"
	CodeNoBTFField     Code = "NO_BTF_FIELD"
	CodeBadBTFTID      Code = "BAD_BTF_TID"
	CodeNoPtrStrct     Code = "NO_PTR_STRCT"
	CodeBadType4Str    Code = "BAD_TYPE4STR"
	CodeNoRetval       Code = "NO_RETVAL"
	CodeArgs2Long      Code = "ARGS_2LONG"
	CodeNofentryArgs   Code = "NOFENTRY_ARGS"
	CodeDoubleArgs     Code = "DOUBLE_ARGS"
	CodeNosupDatArg    Code = "NOSUP_DAT_ARG"
	CodeBadHyphen      Code = "BAD_HYPHEN"
	CodeEventTooBig    Code = "EVENT_TOO_BIG"
	CodeNoProfile      Code = "NO_PROFILE" // ours: needs to know the guest's task or file structures
)

// Errors in a filter (kernel/trace/trace_events_filter.c). A filter can also have
// CodeCommandTooLong, CodeBadCharacter and CodeNoProfile.
const (
	CodeInvalidOp      Code = "INVALID_OP"
	CodeTooManyOpen    Code = "TOO_MANY_OPEN"
	CodeTooManyClose   Code = "TOO_MANY_CLOSE"
	CodeMissingQuote   Code = "MISSING_QUOTE"
	CodeOperandTooLong Code = "OPERAND_TOO_LONG"
	CodeExpectString   Code = "EXPECT_STRING"
	CodeExpectDigit    Code = "EXPECT_DIGIT"
	CodeIllegalFieldOp Code = "ILLEGAL_FIELD_OP"
	CodeFieldNotFound  Code = "FIELD_NOT_FOUND"
	CodeIllegalIntval  Code = "ILLEGAL_INTVAL"
	CodeTooManyPreds   Code = "TOO_MANY_PREDS"
	CodeInvalidFilter  Code = "INVALID_FILTER"
	CodeInvalidValue   Code = "INVALID_VALUE"
	CodeNoFilter       Code = "NO_FILTER"
)

// reason is the kernel's text for a code and its usual errno.
type reason struct {
	text  string
	errno syscall.Errno // 0 means EINVAL
}

// reasons holds every code. The texts are the kernel's error_log lines, except
// for the codes that are ours.
var reasons = map[Code]reason{
	CodeBadCommand:      {text: "Command is not a probe definition"},
	CodeNoPlace:         {text: "Probe point is not specified"},
	CodeFilePlace:       {text: "Probe point in a file is not available"},
	CodeCommandTooLong:  {text: "Command is too long"},
	CodeBadCharacter:    {text: "Command has a control character"},
	CodeBadMaxactType:   {text: "Maxactive is only for function exit"},
	CodeBadMaxact:       {text: "Invalid maxactive number"},
	CodeMaxactTooBig:    {text: "Maxactive is too big"},
	CodeBadProbeAddr:    {text: "Invalid probed address or symbol"},
	CodeNonUniqSymbol:   {text: "The symbol is not unique"},
	CodeBadRetprobe:     {text: "Retprobe address must be an function entry"},
	CodeBadWatch:        {text: "Invalid watched access or length"},
	CodeBadTPName:       {text: "Invalid character in tracepoint name"},
	CodeNoTracepoint:    {"Tracepoint is not found", syscall.ENOENT},
	CodeBadAddrSuffix:   {text: "Invalid probed address suffix"},
	CodeNoGroupName:     {text: "Group name is not specified"},
	CodeGroupTooLong:    {text: "Group name is too long"},
	CodeBadGroupName:    {text: "Group name must follow the same rules as C identifiers"},
	CodeNoEventName:     {text: "Event name is not specified"},
	CodeEventTooLong:    {text: "Event name is too long"},
	CodeBadEventName:    {text: "Event name must follow the same rules as C identifiers"},
	CodeEventExist:      {"Given group/event name is already used by another event", syscall.EEXIST},
	CodeDiffProbeType:   {"Probe type is different from existing probe", syscall.EEXIST},
	CodeSameProbe:       {"There is already the exact same probe event", syscall.EEXIST},
	CodeDiffArgType:     {"Argument type or name is different from existing probe", syscall.EEXIST},
	CodeBadInsnBndry:    {"Probe point is not an instruction boundary", syscall.EILSEQ},
	CodeFailRegProbe:    {text: "Failed to register probe event"},
	CodeRefcntOpenBrace: {text: "Reference counter brace is not closed"},
	CodeRefcntBadSuffix: {text: "Reference counter has wrong suffix"},
	CodeBadRefcnt:       {text: "Invalid reference counter offset"},
	CodeNoEvent:         {"No such probe event", syscall.ENOENT},

	CodeTooManyArgs:    {"Too many arguments are specified", syscall.E2BIG},
	CodeRetvalOnProbe:  {text: "$retval is not available on probe"},
	CodeBadStackNum:    {text: "Invalid stack number"},
	CodeBadArgNum:      {text: "Invalid argument number"},
	CodeBadVar:         {text: "Invalid $-variable specified"},
	CodeBadRegName:     {text: "Invalid register name"},
	CodeBadMemAddr:     {text: "Invalid memory address"},
	CodeBadImm:         {text: "Invalid immediate value"},
	CodeImmstrNoClose:  {text: `String is not closed with '"'`},
	CodeFileOnKprobe:   {text: "File offset is not available with kprobe"},
	CodeTooManyOps:     {text: "Dereference is too much nested"},
	CodeDerefNeedBrace: {text: "Dereference needs a brace"},
	CodeBadDerefOffs:   {text: "Invalid dereference offset"},
	CodeDerefOpenBrace: {text: "Dereference brace is not closed"},
	CodeDerefSuffix:    {text: "Dereference has text after its closing brace"},
	CodeCommCantDeref:  {text: "$comm can not be dereferenced"},
	CodeBadFetchArg:    {text: "Invalid fetch argument"},
	CodeArrayNoClose:   {text: "Array is not closed"},
	CodeBadArraySuffix: {text: "Array has wrong suffix"},
	CodeBadArrayNum:    {text: "Invalid array size"},
	CodeArrayTooBig:    {text: "Array number is too big"},
	CodeBadType:        {text: "Unknown type is specified"},
	CodeBadString:      {text: "String accepts only memory argument"},
	CodeBadSymstring:   {text: "Symbol String doesn't accept data/userdata"},
	CodeBadBitfield:    {text: "Invalid bitfield"},
	CodeNeedStringType: {text: "$comm and immediate-string only accepts string type"},
	CodeArgNameTooLong: {text: "Argument name is too long"},
	CodeNoArgName:      {text: "Argument name is not specified"},
	CodeBadArgName:     {text: "Argument name must follow the same rules as C identifiers"},
	CodeUsedArgName:    {text: "This argument name is already used"},
	CodeArgTooLong:     {"Argument expression is too long", syscall.E2BIG},
	CodeNoArgBody:      {text: "No argument expression"},
	CodeNosupBTFArg:    {"BTF is not available or not supported", syscall.EOPNOTSUPP},
	CodeNoBTFArg:       {"This variable is not found at this probe point", syscall.ENOENT},
	CodeNoBTFEntry:     {"No BTF entry for this probe point", syscall.ENOENT},
	CodeNoBTFField:     {"This field is not found.", syscall.ENOENT},
	CodeBadBTFTID:      {text: "Failed to get BTF type info."},
	CodeNoPtrStrct:     {text: "This is not a pointer to union/structure."},
	CodeBadType4Str:    {text: "This type does not fit for string."},
	CodeNoRetval:       {"This function returns 'void' type", syscall.ENOENT},
	CodeArgs2Long:      {"$arg* failed because the argument list is too long", syscall.E2BIG},
	CodeNofentryArgs:   {text: "$arg* can be used only on function entry or exit"},
	CodeDoubleArgs:     {text: "$arg* can be used only once in the parameters"},
	CodeNosupDatArg:    {"Non pointer structure/union argument is not supported.", syscall.EOPNOTSUPP},
	CodeBadHyphen:      {text: "Failed to parse single hyphen. Forgot '>'?"},
	CodeEventTooBig:    {"Event too big (too many fields?)", syscall.E2BIG},
	CodeNoProfile:      {"Guest profile is not available", syscall.EOPNOTSUPP},

	CodeInvalidOp:      {text: "Invalid operator"},
	CodeTooManyOpen:    {text: "Too many '('"},
	CodeTooManyClose:   {text: "Too few '('"},
	CodeMissingQuote:   {text: "Missing matching quote"},
	CodeOperandTooLong: {text: "Operand too long"},
	CodeExpectString:   {text: "Expecting string field"},
	CodeExpectDigit:    {text: "Expecting numeric field"},
	CodeIllegalFieldOp: {text: "Illegal operation for field type"},
	CodeFieldNotFound:  {text: "Field not found"},
	CodeIllegalIntval:  {text: "Illegal integer value"},
	CodeTooManyPreds:   {text: "Too many terms in predicate expression"},
	CodeInvalidFilter:  {text: "Meaningless filter expression"},
	CodeInvalidValue:   {text: "Invalid value (did you forget quotes)?"},
	CodeNoFilter:       {text: "No filter found"},
}

// Text returns the kernel's text for the code, or "" for a code that is not in this
// package's list.
func (c Code) Text() string { return reasons[c].text }

// Errno returns the usual errno of the code: EINVAL unless the kernel has another one
// for it.
func (c Code) Errno() syscall.Errno {
	if e := reasons[c].errno; e != 0 {
		return e
	}
	return syscall.EINVAL
}
