//! Why something is not converted: the values of annotation [`NOT_CONVERTED`](crate::names::NOT_CONVERTED).

/// Some terms of node affinity mean virtual nodes, others lower nodes: neither cluster could decide alone.
pub(crate) const MIXED_TERMS: &str = "required node affinity: its terms use labels of virtual nodes and other labels; use a single term, \
                                      or set the annotation multicluster.virtual-kubelet.io/lower";
/// Several terms mean lower nodes, and the annotation for them is in use.
pub(crate) const LOWER_IS_SET: &str = "required node affinity: it has several terms, and the annotation \
                                       multicluster.virtual-kubelet.io/lower or clusterSelector is set; add the terms there";
/// The API server allows one soft constraint for each topology key.
pub(crate) const SOFT_EXISTS: &str =
    "topologySpreadConstraints: a hard and a soft constraint have the same topologyKey; remove the soft one";
