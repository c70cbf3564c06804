//! The cases.

mod files;
mod identity;
mod lists;
mod load;
mod observation;
mod restart;

pub(super) use self::{files::*, identity::*, lists::*, load::*, observation::*, restart::*};

use k8s_openapi::api::core::v1::Pod;

use super::{CaseContext, SeenGroup, TestCloud, pod::reference};

/// The groups of a pod that cost money and are not on their way out.
fn groups_of<C: TestCloud>(context: &CaseContext<C>, pod: &Pod) -> Vec<SeenGroup> {
    let pod = reference(pod);
    context.cloud.seen_groups().into_iter().filter(|one| one.owner.pod == pod && !one.deleting).collect()
}

fn assert_one_group<C: TestCloud>(context: &CaseContext<C>, pod: &Pod) {
    let groups = groups_of(context, pod);
    assert_eq!(groups.len(), 1, "{groups:?}");
}
