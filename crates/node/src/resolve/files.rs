use k8s_openapi::api::core::v1::Pod;
use vk_provider::{Result, resolve::{Facts, FileSet, NodeFacts}};
use super::objects::{Needs, Objects, Remark};
pub(crate) fn needs(_pod: &Pod, _v: &str) -> Result<Needs> { Ok(Needs::default()) }
pub(crate) fn volume(_pod: &Pod, _n: &str, _f: &Facts, _nf: &NodeFacts, _o: &Objects) -> Result<(FileSet, Vec<Remark>)> { Ok(Default::default()) }
