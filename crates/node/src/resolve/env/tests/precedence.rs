//! Precedence as a property: whatever a container lists, each variable has the value that the rules say.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;
use vk_provider::resolve::Facts;

use super::{super::super::expansion::expand, config_map, node, objects, pod};

const NAMES: &str = "[A-D]";

#[derive(Clone, Debug)]
enum Entry {
    Plain(String),
    Composed(String),
    Key { name: String, optional: bool },
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        "[a-z]{0,3}".prop_map(Entry::Plain),
        r"(\$\([A-D]\)){1,3}".prop_map(Entry::Composed),
        (NAMES, any::<bool>()).prop_map(|(name, optional)| Entry::Key { name, optional }),
    ]
}

fn maps() -> impl Strategy<Value = Vec<BTreeMap<String, String>>> {
    prop::collection::vec(prop::collection::btree_map(NAMES, "[a-z$(A)]{0,4}", 0..4), 1..4)
}

proptest! {
    #[test]
    fn each_variable_occurs_once_with_the_value_of_highest_precedence(
        maps in maps(),
        entries in prop::collection::vec((NAMES, entry()), 0..8),
    ) {
        let mut objects = objects();
        for (index, map) in maps.iter().enumerate() {
            let data: Vec<(&str, &str)> = map.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            objects.config_maps.insert(format!("map-{index}"), Some(config_map(&data)));
        }
        let sources: Vec<_> =
            (0..maps.len()).map(|index| json!({"configMapRef": {"name": format!("map-{index}")}})).collect();
        let env: Vec<_> = entries
            .iter()
            .map(|(name, entry)| match entry {
                Entry::Plain(value) | Entry::Composed(value) => json!({"name": name, "value": value}),
                Entry::Key { name: key, optional } => {
                    let key = json!({"name": "map-0", "key": key, "optional": optional});
                    json!({"name": name, "valueFrom": {"configMapKeyRef": key}})
                }
            })
            .collect();
        let pod = pod(json!({"envFrom": sources, "env": env}));
        let found = super::super::container(&pod, "c", &Facts::default(), &node(), &objects);

        // The rules again, in the plainest words: one map, written over and over.
        let mut wanted: BTreeMap<String, String> = BTreeMap::new();
        let mut missing = false;
        for map in &maps {
            wanted.extend(map.clone());
        }
        for (name, entry) in &entries {
            match entry {
                Entry::Plain(value) => drop(wanted.insert(name.clone(), value.clone())),
                Entry::Composed(text) => {
                    let value = expand(text, |name| wanted.get(name).map(String::as_str)).into_owned();
                    wanted.insert(name.clone(), value);
                }
                Entry::Key { name: key, optional } => match maps[0].get(key) {
                    Some(value) => drop(wanted.insert(name.clone(), value.clone())),
                    None => missing |= !optional,
                },
            }
        }
        prop_assert_eq!(found.is_err(), missing);
        if let Ok((inputs, _)) = found {
            let own: Vec<(String, String)> =
                inputs.pairs().into_iter().filter(|(name, _)| !name.starts_with("KUBERNETES_")).collect();
            let names: BTreeSet<&String> = own.iter().map(|(name, _)| name).collect();
            prop_assert_eq!(names.len(), own.len(), "a name stands twice");
            prop_assert_eq!(own.into_iter().collect::<BTreeMap<_, _>>(), wanted);
        }
    }
}
