//! The lower pods of upper pods: an upper pod never has two at the same time, in whatever lower clusters or namespaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;
use tokio::sync::watch;

use crate::live::cluster::{
    cluster_pair::ORIGIN_UID,
    namespace_client::{NamespaceClient, text},
};

/// How long it waits between two looks.
const PERIOD: Duration = Duration::from_millis(200);

/// The UIDs of lower pods, by the UID of their upper pod.
type Owned = BTreeMap<String, BTreeSet<String>>;

/// What was seen of lower pods.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Upper pods that had two lower pods at the same time.
    pub(super) doubled: Vec<String>,
    /// All lower pods that were seen.
    pub(super) seen: Owned,
}

/// Looks at lower pods until told to stop. `places` are the lower namespaces where they may be, in all lower clusters.
pub(super) async fn observe(places: &[NamespaceClient<'_>], mut enough: watch::Receiver<bool>) -> Report {
    let mut report = Report::default();
    while !*enough.borrow_and_update() {
        // A cluster may be away for some time.
        drop(report.observe(places).await);
        tokio::select! {
            _ = enough.changed() => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
    report.observe(places).await.unwrap();
    report
}

// === impl Report ===

impl Report {
    async fn observe(&mut self, places: &[NamespaceClient<'_>]) -> kube::Result<()> {
        let mut before: Vec<Owned> = Vec::new();
        for (index, place) in places.iter().enumerate() {
            let owned = owned(&place.try_list("pods").await?);
            for (upper, lower) in &owned {
                if lower.len() > 1 {
                    self.doubled.push(format!("{upper}: {lower:?} in {}", place.namespace));
                }
                self.seen.entry(upper.clone()).or_default().extend(lower.clone());
            }
            for (other, earlier) in places.iter().zip(&before) {
                let both: Vec<&String> = owned.keys().filter(|upper| earlier.contains_key(*upper)).collect();
                if both.is_empty() {
                    continue;
                }
                // The first may have gone before the second came: only one that is still there was there all the time.
                let still = self::owned(&other.try_list("pods").await?);
                let doubled = both.into_iter().filter(|upper| {
                    still.get(*upper).is_some_and(|lower| !lower.is_disjoint(&earlier[*upper]))
                });
                let places = format!("in {} and in {}", other.namespace, places[index].namespace);
                self.doubled.extend(doubled.map(|upper| format!("{upper}: {places}")));
            }
            before.push(owned);
        }
        Ok(())
    }
}

fn owned(pods: &[Value]) -> Owned {
    let mut owned = Owned::new();
    for pod in pods {
        let upper = text(&pod["metadata"]["labels"][ORIGIN_UID]);
        if !upper.is_empty() {
            let uid = text(&pod["metadata"]["uid"]).to_owned();
            owned.entry(upper.to_owned()).or_default().insert(uid);
        }
    }
    owned
}
