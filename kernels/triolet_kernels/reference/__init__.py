"""Every operation once more in plain torch: the oracle of the tests and the fallback.

One file per operation; `reference_ops.ReferenceOps` puts them together. With
`batch_invariant` the same code makes every call of torch with a fixed size, padded where
needed, because it is the size of a call that makes a library choose another order of sums.
"""
