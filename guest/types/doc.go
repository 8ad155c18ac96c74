// Package types reads a guest's types as BTF has them: the prototypes of its functions,
// the members of its structures, and either as C text.
package types
