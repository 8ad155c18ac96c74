// Package elfbuild writes ELF files.
package elfbuild
