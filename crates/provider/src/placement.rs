//! How the placement of pods finds nodes that can be asked whether pods fit, and how it asks them over HTTP.

use std::{collections::BTreeMap, fmt, marker::PhantomData, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, SeqAccess, Visitor},
};

use crate::ability::{Fit, LowerNode, Verdict};

/// Annotation of a Node: what placement can ask of it, as a comma-separated list such as `fit`.
pub const PLACEMENT_ANNOTATION: &str = "virtual-kubelet.io/placement";
/// The entry of [`PLACEMENT_ANNOTATION`] for nodes with the ability [`Fit`].
pub const FIT: &str = "fit";
/// The entry of [`PLACEMENT_ANNOTATION`] for nodes that take pods on trial.
pub const TRIAL: &str = "trial";
/// Annotation of a Node: the fingerprint of the key with which its kubelet API is served. Placement sends its token to no other server.
pub const SERVING_KEY_ANNOTATION: &str = "virtual-kubelet.io/serving-key";

/// Label of a pod that is on trial on a node before it is bound. Its value is the name of the node.
///
/// Placement sets it, and the node removes it when the pod is bound there, or when the trial is over and nothing of the pod is left in the
/// backend. So while a pod has it, the node that it names may run the pod, and no other one may.
pub const TRIAL_LABEL: &str = "multicluster.virtual-kubelet.io/trial";
/// Annotation of a pod that is on trial: when the node ends the trial, as in RFC 3339. Without it the trial is over.
pub const TRIAL_UNTIL_ANNOTATION: &str = "multicluster.virtual-kubelet.io/trial-until";
/// The longest time of a trial, whatever its annotation says: nothing runs for ever behind a scheduling gate.
pub const LONGEST_TRIAL: Duration = Duration::from_mins(20);
/// Annotation of pods whose node selector on the host name was added by placement. Its value is `true`.
pub const PINNED_ANNOTATION: &str = "multicluster.virtual-kubelet.io/pinned";
/// Condition of pods: what the scheduler of the backend decided. While a pod is on trial it is all that its node reports.
pub const SCHEDULED_CONDITION: &str = "multicluster.virtual-kubelet.io/Scheduled";
/// Condition of pods: whether placement has found a node for the pod. It is placement's, also while the pod is on a node.
pub const PLACED_CONDITION: &str = "multicluster.virtual-kubelet.io/Placed";
/// The reason of [`PLACED_CONDITION`] and [`SCHEDULED_CONDITION`] when a trial begins.
pub const ON_TRIAL_REASON: &str = "OnTrial";
/// The reason of [`PLACED_CONDITION`] when a trial has succeeded.
pub const TRIED_REASON: &str = "Tried";
/// The reason of [`SCHEDULED_CONDITION`] when the node does not take the pod, and will not.
pub const REFUSED_REASON: &str = "Refused";

/// The path of the kubelet API at which a [`FitQuery`] is answered with a [`FitAnswer`]. Callers need `create nodes/placement`.
pub const FIT_PATH: &str = "/placement/fit";
/// The audience of tokens that a kubelet API accepts for placement and nothing else accepts. A node that gets one cannot use it against the API server.
pub const TOKEN_AUDIENCE: &str = "placement.virtual-kubelet.io";
/// Limit of a query in bytes.
pub const MAX_QUERY_BYTES: usize = 8 << 20;
/// Limit of the JSON objects of a query. An empty object takes two bytes of the query, and in memory the size of all the fields that it may have.
pub const MAX_QUERY_OBJECTS: usize = 100_000;
/// Limit of the pods in question, and of those that are held.
pub const MAX_QUERY_PODS: usize = 1000;
/// Limit of the UIDs of pods that are gone.
pub const MAX_QUERY_WITHOUT: usize = 10_000;
/// Lower nodes that are named for each pod if a query asks for an explanation.
const BEST_NODES: usize = 3;

/// The arguments of [`Fit::fit`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FitQuery {
    /// Pods that are present in addition to those of the node.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, MAX_QUERY_PODS>"
    )]
    pub held: Vec<Arc<Pod>>,
    /// The pods in question, in order.
    #[serde(deserialize_with = "at_most::<_, _, MAX_QUERY_PODS>")]
    pub pods: Vec<Arc<Pod>>,
    /// UIDs of pods that are gone.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, MAX_QUERY_WITHOUT>"
    )]
    pub without: Vec<Arc<str>>,
    /// Also name the best lower nodes for each pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub explain: bool,
}

/// The answer to a [`FitQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FitAnswer {
    /// One verdict for each pod, in their order.
    pub verdicts: Vec<Verdict>,
    /// The best lower nodes for each pod, in their order, if the query asked for an explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_nodes: Option<Vec<Vec<LowerNode>>>,
}

// === impl FitQuery ===

impl FitQuery {
    /// The limit of texts that this one of a query exceeds, if any, such as `8 MiB`.
    pub fn exceeded_size(json: &[u8]) -> Option<String> {
        if json.len() > MAX_QUERY_BYTES {
            return Some(format!("{} MiB", MAX_QUERY_BYTES >> 20));
        }
        (json_objects(json) > MAX_QUERY_OBJECTS).then(|| format!("{MAX_QUERY_OBJECTS} JSON objects"))
    }

    /// The limit of lists that the query exceeds, if any, such as `1000 pods`. Reading such a query fails.
    pub fn exceeded_count(&self) -> Option<String> {
        if self.pods.len().max(self.held.len()) > MAX_QUERY_PODS {
            return Some(format!("{MAX_QUERY_PODS} pods"));
        }
        (self.without.len() > MAX_QUERY_WITHOUT).then(|| format!("{MAX_QUERY_WITHOUT} pods that are gone"))
    }

    /// Asks a provider.
    pub fn evaluate(&self, fit: &dyn Fit) -> FitAnswer {
        let best_nodes = || self.pods.iter().map(|pod| fit.best_nodes(pod, BEST_NODES)).collect();
        FitAnswer {
            verdicts: fit.fit(&self.held, &self.pods, &self.without),
            best_nodes: self.explain.then(best_nodes),
        }
    }
}

/// The number of objects in a JSON text. Braces in strings count, too.
pub fn json_objects(json: &[u8]) -> usize {
    json.split(|byte| *byte == b'{').skip(1).count()
}

/// Reads a list, and stops when it has more than `MAX` elements.
fn at_most<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MAX: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct Elements<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Elements<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MAX}")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(element) = elements.next_element()? {
                if all.len() == MAX {
                    return Err(A::Error::custom(format!("at most {MAX} are allowed in one query")));
                }
                all.push(element);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_seq(Elements::<T, MAX>(PhantomData))
}

/// Whether a node says that it can be asked whether pods fit.
pub fn declares_fit(node: &Node) -> bool {
    declares(node, FIT)
}

/// Whether a node says that it takes pods on trial.
pub fn declares_trial(node: &Node) -> bool {
    declares(node, FIT) && declares(node, TRIAL)
}

fn declares(node: &Node, entry: &str) -> bool {
    annotation(node, PLACEMENT_ANNOTATION).is_some_and(|list| list.split(',').any(|it| it.trim() == entry))
}

/// The node on which a pod is, or was, on trial.
pub fn trial_node(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(TRIAL_LABEL).map(String::as_str)
}

/// When placement has put a pod on trial; `None` if it has not. Users may set labels and annotations, but they may not write the status.
pub fn trial_began(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let placed = conditions.iter().find(|condition| condition.type_ == PLACED_CONDITION)?;
    let is_trial = [ON_TRIAL_REASON, TRIED_REASON].contains(&placed.reason.as_deref()?);
    placed.last_transition_time.as_ref().filter(|_| is_trial).map(|time| time.0)
}

/// When the trial of a pod ends; `None` if it is over, or is none.
pub fn trial_until(pod: &Pod) -> Option<Timestamp> {
    let until: Timestamp = pod.metadata.annotations.as_ref()?.get(TRIAL_UNTIL_ANNOTATION)?.parse().ok()?;
    let latest = trial_began(pod)?.saturating_add(LONGEST_TRIAL).ok()?;
    Some(until.min(latest))
}

/// The fingerprint of the key with which a node's kubelet API is served.
pub fn serving_key(node: &Node) -> Option<&str> {
    annotation(node, SERVING_KEY_ANNOTATION)
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let all: &BTreeMap<String, String> = node.metadata.annotations.as_ref()?;
    all.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_declares_what_can_be_asked_of_it_by_entries_of_its_annotation() {
        let node = |value: &str| -> Node {
            serde_json::from_value(json!({"metadata": {"annotations": {PLACEMENT_ANNOTATION: value}}}))
                .unwrap()
        };
        assert!(
            declares_fit(&node("fit"))
                && declares_fit(&node("fit,trial"))
                && declares_fit(&node("trial, fit"))
        );
        assert!(!declares_fit(&node("")) && !declares_fit(&node("fitness")) && !declares_fit(&node("trial")));
        assert!(!declares_fit(&Node::default()));
        assert!(declares_trial(&node("fit,trial")) && declares_trial(&node("trial, fit")));
        assert!(!declares_trial(&node("fit")) && !declares_trial(&node("trial")));
    }

    #[test]
    fn a_pod_says_where_it_is_on_trial_and_until_when() {
        let pod = |until: &str| -> Pod {
            let metadata =
                json!({"labels": {TRIAL_LABEL: "vk"}, "annotations": {TRIAL_UNTIL_ANNOTATION: until}});
            let placed = json!({"type": PLACED_CONDITION, "status": "Unknown", "reason": ON_TRIAL_REASON,
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            serde_json::from_value(json!({"metadata": metadata, "status": {"conditions": [placed]}})).unwrap()
        };
        let until = "2026-01-01T00:00:30Z";
        assert_eq!((trial_node(&pod(until)), trial_until(&pod(until))), (Some("vk"), until.parse().ok()));
        assert_eq!(trial_until(&pod("soon")), None);
        let late = trial_until(&pod("2026-01-01T10:00:00Z"));
        assert_eq!(late, "2026-01-01T00:20:00Z".parse().ok(), "a user has changed it");
        let mut by_user = pod(until);
        by_user.status = None;
        assert_eq!((trial_node(&by_user), trial_until(&by_user)), (Some("vk"), None));
        assert_eq!((trial_node(&Pod::default()), trial_until(&Pod::default())), (None, None));
    }

    #[test]
    fn a_query_needs_only_pods_and_no_unknown_fields() {
        let query: FitQuery = serde_json::from_value(json!({"pods": [{"metadata": {"name": "a"}}]})).unwrap();
        assert_eq!((query.pods.len(), query.held.len(), query.explain), (1, 0, false));
        assert_eq!(
            json!(query),
            json!({"pods": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}]})
        );
        assert!(serde_json::from_value::<FitQuery>(json!({"pods": [], "witout": []})).is_err());
        assert!(serde_json::from_value::<FitQuery>(json!({})).is_err());
    }

    #[test]
    fn a_query_beyond_a_limit_cannot_be_read() {
        let pods = |count: usize| (0..count).map(|_| Arc::new(Pod::default())).collect();
        let uids = |count: usize| vec![Arc::from("u"); count];
        let query = |held: usize, asked: usize, without: usize| FitQuery {
            held: pods(held),
            pods: pods(asked),
            without: uids(without),
            explain: false,
        };
        for (query, limit) in [
            (query(MAX_QUERY_PODS, MAX_QUERY_PODS, MAX_QUERY_WITHOUT), None),
            (query(MAX_QUERY_PODS + 1, 1, 0), Some("1000 pods")),
            (query(0, MAX_QUERY_PODS + 1, 0), Some("1000 pods")),
            (query(0, 1, MAX_QUERY_WITHOUT + 1), Some("10000 pods that are gone")),
        ] {
            assert_eq!(query.exceeded_count().as_deref(), limit);
            let json = serde_json::to_vec(&query).unwrap();
            assert_eq!(FitQuery::exceeded_size(&json), None);
            assert_eq!(serde_json::from_slice::<FitQuery>(&json).is_ok(), limit.is_none(), "{limit:?}");
        }
        assert_eq!(FitQuery::exceeded_size(&vec![b' '; MAX_QUERY_BYTES + 1]).as_deref(), Some("8 MiB"));
        let objects = FitQuery::exceeded_size(&vec![b'{'; MAX_QUERY_OBJECTS + 1]);
        assert_eq!(objects.as_deref(), Some("100000 JSON objects"));
    }

    #[test]
    fn an_answer_survives_json() {
        let free = BTreeMap::from([("cpu".to_owned(), "1500m".parse().unwrap())]);
        let answer = FitAnswer {
            verdicts: vec![Verdict::Fits { room: 1, fullness: 2 }],
            best_nodes: Some(vec![vec![LowerNode { name: "a".to_owned(), free }]]),
        };
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<FitAnswer>(&text).unwrap(), answer, "{text}");
        assert_eq!(json!(FitAnswer::default()), json!({"verdicts": []}));
    }
}
