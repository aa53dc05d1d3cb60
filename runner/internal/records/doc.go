// Package records keeps, in memory, a record of each operation. Each id runs at most once. A repeated request gets the
// record of the first one, and the operator reconstructs a trial's progress from all records.
package records
