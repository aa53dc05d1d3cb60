// Package tree kills process trees, including processes that try to evade the kill. A Family comes in, which says where
// the trees begin and when none is left.
package tree
