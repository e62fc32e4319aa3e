// Tasks shared out to threads. Tasks never share state, so the result is the same for any number of threads.
#pragma once
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace sordino {

// Calls f(thread, task) for every task, on the calling thread and threads - 1 others, which end before this returns: nothing is left
// that a fork of the process could break. False if a task threw.
template <class F>
bool share_out(int threads, long tasks, F f) {
  std::atomic<long> next{0};
  std::atomic<bool> sound{true};
  const auto work = [&](int thread) {
    try {
      for (long task; (task = next.fetch_add(1)) < tasks;) f(thread, task);
    } catch (...) {
      sound = false;
    }
  };
  std::vector<std::thread> others;
  try {
    for (int thread = 1; thread < threads && thread < tasks; thread++) others.emplace_back(work, thread);
  } catch (const std::system_error&) {
    // No more threads to be had: those that there are do all the tasks.
  }
  work(0);
  for (std::thread& other : others) other.join();
  return sound;
}

}  // namespace sordino
