//! Amounts of resources as kube-scheduler keeps them: whole numbers by resource.

use std::{collections::HashMap, sync::Arc};

use vk_provider::requests::ResourceList;

/// A resource: an index for those that every node has, and then for the others as they appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ResourceId(u16);

pub(crate) const CPU: ResourceId = ResourceId(0);
pub(crate) const MEMORY: ResourceId = ResourceId(1);
pub(crate) const PODS: ResourceId = ResourceId(3);

/// The names of the resources that every node has, by id.
const BASE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pods"];

/// The names of resources by id.
#[derive(Clone, Debug)]
pub(crate) struct ResourceNames {
    names: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, ResourceId>,
}

/// Amounts by resource: CPU in thousandths, everything else in units. `pods` is a number of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Resource {
    base: [i64; BASE.len()],
    /// Extended resources, huge pages and attachable volumes, sorted. Amounts of 0 are left out.
    scalars: Vec<(ResourceId, i64)>,
}

// === impl ResourceNames ===

impl Default for ResourceNames {
    fn default() -> Self {
        let mut this = Self { names: Vec::new(), ids: HashMap::new() };
        for name in BASE {
            this.add(name);
        }
        this
    }
}

impl ResourceNames {
    pub(crate) fn name(&self, id: ResourceId) -> &str {
        &self.names[usize::from(id.0)]
    }

    /// The amounts of a list. Resources that the scheduler does not know are left out.
    pub(crate) fn read(&mut self, list: &ResourceList) -> Resource {
        let mut resource = Resource::default();
        for (name, amount) in list {
            let id = match self.ids.get(name.as_str()) {
                Some(id) => *id,
                None if is_scalar(name) => self.add(name),
                None => continue,
            };
            resource.set(id, if id == CPU { amount.to_milli() } else { amount.to_units() });
        }
        resource
    }

    fn add(&mut self, name: &str) -> ResourceId {
        let id = ResourceId(u16::try_from(self.names.len()).expect("invariant: fewer than 2^16 resources"));
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        self.ids.insert(name, id);
        id
    }
}

/// Whether a resource is one that the scheduler counts beside those that every node has.
fn is_scalar(name: &str) -> bool {
    let is_extended =
        name.contains('/') && (name.contains("kubernetes.io/") || !name.starts_with("requests."));
    is_extended || name.starts_with("hugepages-") || name.starts_with("attachable-volumes-")
}

// === impl ResourceId ===

impl ResourceId {
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    pub(crate) fn from_index(index: usize) -> Self {
        Self(u16::try_from(index).unwrap_or(u16::MAX))
    }
}

// === impl Resource ===

impl Resource {
    pub(crate) fn get(&self, id: ResourceId) -> i64 {
        match self.base.get(id.index()) {
            Some(amount) => *amount,
            None => self.scalar(id).map_or(0, |index| self.scalars[index].1),
        }
    }

    pub(crate) fn set(&mut self, id: ResourceId, amount: i64) {
        if let Some(base) = self.base.get_mut(id.index()) {
            *base = amount;
            return;
        }
        match (self.scalar(id), amount) {
            (Ok(index), 0) => drop(self.scalars.remove(index)),
            (Ok(index), amount) => self.scalars[index].1 = amount,
            (Err(_), 0) => {}
            (Err(index), amount) => self.scalars.insert(index, (id, amount)),
        }
    }

    fn scalar(&self, id: ResourceId) -> Result<usize, usize> {
        self.scalars.binary_search_by_key(&id, |(id, _)| *id)
    }

    /// All amounts that are not 0.
    pub(crate) fn amounts(&self) -> impl Iterator<Item = (ResourceId, i64)> + '_ {
        let base =
            self.base.iter().enumerate().map(|(index, amount)| (ResourceId::from_index(index), *amount));
        base.chain(self.scalars.iter().copied()).filter(|(_, amount)| *amount != 0)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.combine(other, i64::saturating_add);
    }

    pub(crate) fn subtract(&mut self, other: &Self) {
        self.combine(other, i64::saturating_sub);
    }

    fn combine(&mut self, other: &Self, with: impl Fn(i64, i64) -> i64) {
        for (mine, theirs) in self.base.iter_mut().zip(other.base) {
            *mine = with(*mine, theirs);
        }
        for (id, amount) in &other.scalars {
            self.set(*id, with(self.get(*id), *amount));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(amounts: &[(&str, &str)]) -> ResourceList {
        amounts.iter().map(|(name, amount)| ((*name).to_owned(), amount.parse().unwrap())).collect()
    }

    #[test]
    fn amounts_are_whole_numbers_rounded_up() {
        let mut names = ResourceNames::default();
        let resource = names.read(&list(&[("cpu", "1500100u"), ("memory", "1.5"), ("example.com/gpu", "2")]));
        assert_eq!((resource.get(CPU), resource.get(MEMORY)), (1501, 2));
        let amounts: Vec<_> = resource.amounts().map(|(id, amount)| (names.name(id), amount)).collect();
        assert_eq!(amounts, [("cpu", 1501), ("memory", 2), ("example.com/gpu", 2)]);
    }

    #[test]
    fn resources_that_the_scheduler_does_not_know_do_not_count() {
        for (name, counts) in [
            ("hugepages-2Mi", true),
            ("attachable-volumes-csi-x", true),
            ("example.com/gpu", true),
            ("requests.example.com/gpu", false),
            ("storage", false),
        ] {
            let resource = ResourceNames::default().read(&list(&[(name, "1")]));
            assert_eq!(resource.amounts().count() == 1, counts, "{name}");
        }
    }

    #[test]
    fn what_is_added_and_subtracted_leaves_nothing() {
        let mut names = ResourceNames::default();
        let part = names.read(&list(&[("cpu", "1"), ("a.io/x", "3"), ("b.io/y", "1")]));
        let mut sum = names.read(&list(&[("b.io/y", "2")]));
        sum.add(&part);
        sum.subtract(&part);
        assert_eq!(sum, names.read(&list(&[("b.io/y", "2")])));
    }
}
