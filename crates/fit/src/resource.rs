//! Amounts of resources as kube-scheduler keeps them: whole numbers by resource.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use vk_provider::{Quantity, requests::ResourceList};

/// A resource: an index for those that every node has, and then for the others as they appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ResourceId(u32);

pub(crate) const CPU: ResourceId = ResourceId(0);
pub(crate) const MEMORY: ResourceId = ResourceId(1);
pub(crate) const PODS: ResourceId = ResourceId(3);

/// The names of the resources that every node has, by id.
const BASE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pods"];

/// The names of resources by id. Anybody can invent names, so the ids of those that nothing uses any more are given to others, and nothing copies
/// all of them.
#[derive(Debug)]
pub(crate) struct ResourceNames {
    names: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, ResourceId>,
    vacant: Vec<ResourceId>,
}

/// The names of a snapshot, and those that only the pods of a query have.
#[derive(Debug)]
pub(crate) struct QueryNames<'a> {
    known: &'a ResourceNames,
    added: Vec<Arc<str>>,
    /// The ids of the added names follow those of the known ones.
    ids: HashMap<Arc<str>, ResourceId>,
}

/// Gives ids to the names of resources.
pub(crate) trait ResourceIds {
    /// The id of a resource; `None` if the scheduler does not know it.
    fn id(&mut self, name: &str) -> Option<ResourceId>;

    /// The amounts of a list. Resources that the scheduler does not know are left out.
    fn read(&mut self, list: &ResourceList) -> Resource {
        let mut resource = Resource::default();
        for (name, amount) in list {
            let Some(id) = self.id(name) else { continue };
            let amount = if id == CPU { amount.to_milli() } else { amount.to_units() };
            resource.set(id, amount.max(0));
        }
        resource
    }
}

/// Amounts by resource: CPU in thousandths, everything else in units. `pods` is a number of pods. No amount is negative.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Resource<T = i64> {
    base: [T; BASE.len()],
    /// Extended resources, huge pages and attachable volumes, sorted. Amounts of 0 are left out.
    scalars: Vec<(ResourceId, T)>,
}

/// The sum of the amounts of many pods. It cannot overflow, so what is subtracted again leaves exactly what was there before.
pub(crate) type ResourceSum = Resource<i128>;

// === impl ResourceNames ===

impl Default for ResourceNames {
    fn default() -> Self {
        let mut this = Self { names: Vec::new(), ids: HashMap::new(), vacant: Vec::new() };
        for name in BASE {
            this.add(name);
        }
        this
    }
}

impl ResourceNames {
    pub(crate) fn name(&self, id: ResourceId) -> &str {
        &self.names[id.index()]
    }

    /// The reverse of [`read`](ResourceIds::read).
    pub(crate) fn to_list(&self, resource: &ResourceSum) -> ResourceList {
        let amount = |(id, amount)| self.to_amount(id, i64::try_from(amount).unwrap_or(i64::MAX));
        resource.amounts().map(amount).collect()
    }

    /// The name and the amount of a resource.
    pub(crate) fn to_amount(&self, id: ResourceId, amount: i64) -> (String, Quantity) {
        let name = self.name(id);
        let amount = match name {
            "cpu" => Quantity::milli(amount),
            _ if is_in_bytes(name) => Quantity::bytes(amount),
            _ => Quantity::units(amount),
        };
        (name.to_owned(), amount)
    }

    /// Forgets all names but those in use.
    pub(crate) fn retain(&mut self, in_use: &HashSet<ResourceId>) {
        let unused: Vec<Arc<str>> = self
            .ids
            .iter()
            .filter(|(_, id)| id.index() >= BASE.len() && !in_use.contains(id))
            .map(|(name, _)| Arc::clone(name))
            .collect();
        for name in unused {
            self.vacant.extend(self.ids.remove(&name));
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    fn add(&mut self, name: &str) -> ResourceId {
        let name: Arc<str> = name.into();
        let id = if let Some(id) = self.vacant.pop() {
            self.names[id.index()] = Arc::clone(&name);
            id
        } else {
            self.names.push(Arc::clone(&name));
            ResourceId::from_index(self.names.len() - 1)
        };
        self.ids.insert(name, id);
        id
    }
}

impl ResourceIds for ResourceNames {
    fn id(&mut self, name: &str) -> Option<ResourceId> {
        let known = self.ids.get(name).copied();
        known.or_else(|| is_scalar(name).then(|| self.add(name)))
    }
}

// === impl QueryNames ===

impl<'a> QueryNames<'a> {
    pub(crate) fn new(known: &'a ResourceNames) -> Self {
        Self { known, added: Vec::new(), ids: HashMap::new() }
    }

    pub(crate) fn name(&self, id: ResourceId) -> &str {
        match id.index().checked_sub(self.known.names.len()) {
            Some(index) => &self.added[index],
            None => self.known.name(id),
        }
    }

    fn add(&mut self, name: &str) -> ResourceId {
        let name: Arc<str> = name.into();
        let id = ResourceId::from_index(self.known.names.len() + self.added.len());
        self.added.push(Arc::clone(&name));
        self.ids.insert(name, id);
        id
    }
}

impl ResourceIds for QueryNames<'_> {
    fn id(&mut self, name: &str) -> Option<ResourceId> {
        let known = self.known.ids.get(name).or_else(|| self.ids.get(name)).copied();
        known.or_else(|| is_scalar(name).then(|| self.add(name)))
    }
}

/// Whether people write amounts of a resource as `8Gi`.
fn is_in_bytes(name: &str) -> bool {
    matches!(name, "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
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
        self.0 as usize
    }

    pub(crate) fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("invariant: fewer than 2^32 resources"))
    }
}

// === impl Resource ===

impl<T: Copy + Default + Eq> Resource<T> {
    pub(crate) fn get(&self, id: ResourceId) -> T {
        match self.base.get(id.index()) {
            Some(amount) => *amount,
            None => self.scalar(id).map_or_else(|_| T::default(), |index| self.scalars[index].1),
        }
    }

    pub(crate) fn set(&mut self, id: ResourceId, amount: T) {
        if let Some(base) = self.base.get_mut(id.index()) {
            *base = amount;
            return;
        }
        match self.scalar(id) {
            Ok(index) if amount == T::default() => drop(self.scalars.remove(index)),
            Ok(index) => self.scalars[index].1 = amount,
            Err(_) if amount == T::default() => {}
            Err(index) => self.scalars.insert(index, (id, amount)),
        }
    }

    fn scalar(&self, id: ResourceId) -> Result<usize, usize> {
        self.scalars.binary_search_by_key(&id, |(id, _)| *id)
    }

    /// All amounts that are not 0.
    pub(crate) fn amounts(&self) -> impl Iterator<Item = (ResourceId, T)> + '_ {
        let base =
            self.base.iter().enumerate().map(|(index, amount)| (ResourceId::from_index(index), *amount));
        base.chain(self.scalars.iter().copied()).filter(|(_, amount)| *amount != T::default())
    }

    /// The resources beside those that every node has.
    pub(crate) fn scalar_ids(&self) -> impl Iterator<Item = ResourceId> + '_ {
        self.scalars.iter().map(|(id, _)| *id)
    }
}

impl ResourceSum {
    pub(crate) fn add(&mut self, other: &Resource) {
        self.combine(other, |sum, amount| sum + amount);
    }

    pub(crate) fn subtract(&mut self, other: &Resource) {
        self.combine(other, |sum, amount| sum - amount);
    }

    fn combine(&mut self, other: &Resource, with: impl Fn(i128, i128) -> i128) {
        for (mine, theirs) in self.base.iter_mut().zip(other.base) {
            *mine = with(*mine, theirs.into());
        }
        for (id, amount) in &other.scalars {
            self.set(*id, with(self.get(*id), (*amount).into()));
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
        let mut sum = ResourceSum::default();
        sum.add(&names.read(&list(&[("b.io/y", "2")])));
        let before = sum.clone();
        sum.add(&part);
        assert_eq!(names.to_list(&sum), list(&[("cpu", "1"), ("a.io/x", "3"), ("b.io/y", "3")]));
        sum.subtract(&part);
        assert_eq!(sum, before);
    }

    #[test]
    fn pods_of_any_size_leave_what_was_there_before_when_they_go() {
        let mut names = ResourceNames::default();
        let (small, huge) =
            (names.read(&list(&[("memory", "1Gi")])), names.read(&list(&[("memory", "7Ei"), ("cpu", "-5")])));
        let mut sum = ResourceSum::default();
        for part in [&small, &huge, &huge, &huge] {
            sum.add(part);
        }
        for _ in 0..3 {
            sum.subtract(&huge);
        }
        assert_eq!(names.to_list(&sum), list(&[("memory", "1Gi")]), "and nothing is negative");
        assert_eq!(names.to_list(&sum)["memory"].to_string(), "1Gi");
    }

    #[test]
    fn names_that_nothing_uses_are_forgotten() {
        let mut names = ResourceNames::default();
        let kept = names.read(&list(&[("a.io/kept", "1")]));
        let base = names.len();
        for number in 0..3 {
            names.read(&list(&[(&format!("a.io/x{number}"), "1")]));
            names.retain(&kept.scalar_ids().collect());
        }
        assert_eq!((names.len(), names.names.len()), (base, base + 1), "one id is used again and again");
        assert_eq!(names.name(kept.scalar_ids().next().unwrap()), "a.io/kept");
        assert_eq!(names.name(CPU), "cpu");
    }
}
